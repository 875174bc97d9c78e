"""`specchat serve`: the OpenAI-compatible endpoint, without the terminal app."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from specchat.cli import options
from specchat.errors import BadRequestError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from specchat.engine.engine import LoadProgress
    from specchat.engine.llama import EmbeddingModel
    from specchat.engine.service import Service


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="answer OpenAI clients over HTTP",
        description="Answer OpenAI clients over HTTP, several at a time, on this machine only "
        "unless told otherwise. Sampling and speculation flags are defaults for requests.",
    )
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    group.add_argument("--port", type=int, default=8080, help="0 takes a free one (default 8080)")
    group.add_argument(
        "--api-key-file", metavar="FILE", help="key that clients must send (or SPECCHAT_API_KEY)"
    )
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="further name; repeatable"
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="web page that may use the server, such as http://localhost:3000; repeatable",
    )
    group.add_argument("--parallel", type=int, default=2, metavar="N", help="answers side by side")
    group.add_argument("--queue", type=int, default=64, metavar="N", help="requests that may wait")
    group.add_argument("--alias", metavar="NAME", help="model name that clients see")
    group.add_argument("--embeddings", metavar="GGUF", help="a second model, for /v1/embeddings")
    options.add_model_flags(parser)
    options.add_sampling_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it. Raises SpecchatError for what cannot be served."""
    if not 0 <= args.port <= 65535:
        raise BadRequestError(f"--port must be 0 to 65535, not {args.port}.", "port")
    if not 1 <= args.queue <= 10_000:
        raise BadRequestError(f"--queue must be 1 to 10000, not {args.queue}.", "queue")
    from specchat.engine.service import Service
    from specchat.server.app import create_app
    from specchat.server.run import listen
    from specchat.server.security import Door

    door = Door(
        bind=args.host,
        key=_key(args.api_key_file),
        hosts=tuple(name.lower() for name in args.allow_host),
        origins=tuple(args.allow_origin),
    )
    defaults = options.settings(args)
    sock = listen(args.host, args.port)  # before the weights: a taken port shows at once

    def load(progress: LoadProgress) -> tuple[Service, Starlette]:
        embedder = _embedder(args)
        engine = options.load_engine(args, progress, sequences=args.parallel)
        service = Service(engine, waiting=args.queue)
        service.call(lambda: engine.calibration)  # not at the first client's expense
        app = create_app(service, door=door, defaults=defaults, model=args.alias, embedder=embedder)
        return service, app

    with contextlib.closing(sock):
        _serve(sock, load, lambda: _announce(args.host, sock.getsockname()[1]))
    return 0


def _serve(
    sock: socket.socket,
    load: Callable[[LoadProgress], tuple[Service, Starlette]],
    ready: Callable[[], None],
) -> None:
    """Answer on `sock` at once, with 503 while `load` works on a thread of its own."""
    from specchat.server.entrance import Entrance
    from specchat.server.run import Server

    entrance = Entrance()
    server = Server(entrance)
    services: list[Service] = []
    failures: list[BaseException] = []

    def open_entrance() -> None:
        try:
            service, entrance.app = load(lambda _name, _share: not server.should_exit)
            services.append(service)
            ready()
        except BaseException as error:
            failures.append(error)
            server.should_exit = True

    loading = threading.Thread(target=open_entrance, name="loading")
    loading.start()
    try:
        server.run(sockets=[sock])
    finally:
        loading.join()
        for service in services:
            service.close(wait=5.0)
    if failures:
        raise failures[0]


def _embedder(args: argparse.Namespace) -> EmbeddingModel | None:
    if not args.embeddings:
        return None
    from specchat.engine.llama import EmbeddingModel

    return EmbeddingModel.load(args.embeddings, n_gpu_layers=args.gpu_layers, threads=args.threads)


def _key(file: str | None) -> str | None:
    """Not a flag: other users of the machine can read those."""
    if file is not None:
        key = options.read_text(file).strip()
        if not key:
            raise BadRequestError(f"The key file {file} is empty.", "api_key_file")
        return key
    return os.environ.get("SPECCHAT_API_KEY") or None


def _announce(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    print(f"specchat: serving http://{shown}:{port}/v1 (Ctrl-C ends)", file=sys.stderr, flush=True)
