"""`--endpoint`: the flags for a server elsewhere, and the engine they become."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from specchat.cli import options
from specchat.errors import BadRequestError

if TYPE_CHECKING:
    from specchat.remote import RemoteEngine


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a server elsewhere")
    group.add_argument(
        "--endpoint", metavar="URL",
        help="ask an OpenAI-compatible server; -m is the name of its model",
    )  # fmt: skip
    group.add_argument(
        "--key-env", metavar="VAR", help="environment variable that holds the server's key"
    )


def check(args: argparse.Namespace) -> None:
    """Raises BadRequestError for flags that contradict each other."""
    if args.endpoint is None:
        if args.key_env is not None:
            raise BadRequestError("--key-env goes with --endpoint.", "key_env")
        return
    local = argparse.ArgumentParser()
    options.add_model_flags(local)
    for name, default in vars(local.parse_args([])).items():
        if name != "model" and getattr(args, name) != default:
            flag = f"--{name.replace('_', '-')}"
            raise BadRequestError(
                f"{flag} is for models of this machine; at an --endpoint the server decides it.",
                name,
            )


def connect(args: argparse.Namespace) -> RemoteEngine:
    """Raises BadRequestError and EndpointError."""
    from specchat.remote import RemoteEngine

    return RemoteEngine(args.endpoint, args.model, _key(args.key_env))


def _key(variable: str | None) -> str | None:
    """The key, from the environment and nowhere else."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise BadRequestError(
            f"The environment variable {variable}, which --key-env names, is not set.", "key_env"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise BadRequestError(
            f"What the environment variable {variable} holds cannot be a key: blanks, line "
            "breaks or letters outside of ASCII are in it.",
            "key_env",
        )
    return key
