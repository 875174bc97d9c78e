"""`specchat -p "…"`: one question, one streamed answer."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from specchat.cli import options, remote
from specchat.errors import BadRequestError

if TYPE_CHECKING:
    from specchat.cli.output import Writer
    from specchat.engine.engine import Engine, LoadProgress
    from specchat.engine.events import Event
    from specchat.engine.stats import Stats
    from specchat.remote import RemoteEngine


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the question; standard input is appended"
    )
    parser.add_argument("-s", "--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--system-file", metavar="FILE", help="system prompt from a file")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.add_argument(
        "--parallel", type=int, default=2, metavar="N",
        help="answers side by side in the app: its own, and its endpoint's clients' (default 2)",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="no summary on stderr")


def run(args: argparse.Namespace) -> int:
    """Answer one prompt. Raises SpecchatError for everything a user can get wrong."""
    prompt = _prompt(args)
    remote.check(args)
    if prompt is None and sys.stdin.isatty() and sys.stdout.isatty() and not args.json:
        from specchat.tui.app import run as open_app

        return open_app(args)
    if prompt is None:
        raise BadRequestError('Give a question with -p "…" or on standard input (see --help).')
    settings = options.settings(args)

    from specchat.cli.output import summary_line
    from specchat.engine.engine import Cancel
    from specchat.engine.messages import Message
    from specchat.engine.worker import Worker

    system = options.read_text(args.system_file) if args.system_file else args.system
    messages = [Message("system", system)] if system else []
    messages.append(Message("user", prompt))
    writer = _writer(args)
    worker, cancel = Worker(), Cancel()
    if args.rule == "typical":
        _note("rule typical is lossy: the answer does not follow the target's distribution.")

    with _interrupts(cancel.set):
        with _Progress() as progress:

            def report(stage: str, share: float) -> bool:
                progress.show(stage, share)
                return not cancel.is_set()

            engine = worker.submit(lambda: _engine(args, report)).result()

        def begin() -> tuple[Stats, Iterator[Event]]:
            events = engine.chat(messages, settings, cancel)  # may measure the models first
            return engine.stats(), events

        try:
            stats, events = worker.submit(begin).result()
            for note in getattr(engine, "notes", ()):
                _note(note)
            for event in worker.stream(lambda: events):
                stats.add(event)
                writer.add(event)
            depth = stats.last.depth if stats.last else 0
            controller = engine.controller
            prediction = (
                worker.submit(lambda: controller.prediction(depth)).result() if controller else None
            )
        finally:
            cancel.set()
            worker.submit(engine.close).result()  # or the process ends before it has saved
        writer.end(stats, prediction)
    if not args.quiet:
        _note(summary_line(stats))
    if stats.finish is not None and stats.finish.reason == "cancelled":
        return 130
    return 0


def _engine(args: argparse.Namespace, progress: LoadProgress) -> Engine | RemoteEngine:
    return remote.connect(args) if args.endpoint else options.load_engine(args, progress)


def _prompt(args: argparse.Namespace) -> str | None:
    """-p and standard input, joined; None where there is neither."""
    given = None if args.prompt == "-" else args.prompt
    piped = ""
    if not sys.stdin.isatty():
        piped = sys.stdin.buffer.read().decode("utf-8", "replace").strip("\n")
    parts = [part for part in (given, piped) if part]
    return "\n\n".join(parts) or None


def _writer(args: argparse.Namespace) -> Writer:
    from specchat.cli.output import ColourWriter, JsonWriter, PlainWriter, wants_colour

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    if args.json:
        return JsonWriter()
    attributes, colours = wants_colour(args.color, sys.stdout)
    if not attributes:
        return PlainWriter(strip=sys.stdout.isatty())
    writer = ColourWriter(colours)
    if not args.quiet and not args.endpoint and sys.stderr.isatty():
        print(writer.legend(), file=sys.stderr)
    return writer


def _note(text: str) -> None:
    from specchat.engine.text import strip_control

    sys.stdout.flush()
    print(f"specchat: {strip_control(text)}", file=sys.stderr, flush=True)


class _interrupts:
    """While inside, Ctrl-C and SIGTERM call `stop`; a second one ends the process."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._old: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, _frame: object) -> None:
        for again in self._old:
            signal.signal(again, signal.SIG_DFL)
        self._stop()


class _Progress:
    """A load line on a terminal's stderr, once loading has taken half a second."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._shown = False

    def show(self, stage: str, share: float) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._start > 0.5:
            self._shown = True
            print(f"\rloading {stage} {share:4.0%} ", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
