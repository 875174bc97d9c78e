"""Which command runs, and how its errors end: one line, an exit code, no traceback."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specchat import __version__
from specchat.errors import SpecchatError

# Modules with `add_parser` and `run`; imported only when their command is named.
COMMANDS = {
    "doctor": "specchat.cli.doctor",
    "simulate": "specchat.cli.simulate",
    "bench": "specchat.cli.bench",
    "serve": "specchat.cli.serve",
    "models": "specchat.cli.models",
    "pull": "specchat.cli.pull",
    "distill": "specchat.cli.distill",
}
_SUMMARIES = {
    "models": "list the models of this machine, and rank drafts for a target",
    "pull": "download a pair or a file from the Hugging Face Hub",
    "doctor": "check whether a pair of models fits, and what it costs",
    "simulate": "show how speculation saves target calls; needs no model",
    "serve": "answer OpenAI clients over HTTP on this machine",
    "distill": "train a small draft for a target, on what it says itself",
    "bench": "measure plain, fixed and automatic draft lengths on a pair",
}

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a file or of `> FILE`


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        _open_streams()
        _log_to_file()
        parser = _parser(argv)
        args = parser.parse_args(argv)
        _resolve_names(args)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SpecchatError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return _unexpected(error)
        _complain(f"Cannot write {error.filename or 'the output'}: {error.strerror}.")
        return 1
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    logging.getLogger("specchat").error("unexpected error", exc_info=error)
    _complain(f"Unexpected {type(error).__name__}: {error}. Details are in {log_file()}.")
    return 1


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    named = argv[0] if argv and argv[0] in COMMANDS else None
    if named:
        parser = argparse.ArgumentParser(prog="specchat")
        importlib.import_module(COMMANDS[named]).add_parser(parser.add_subparsers())
        return parser
    from specchat.cli import ask, remote
    from specchat.cli.options import add_model_flags, add_sampling_flags

    parser = argparse.ArgumentParser(
        prog="specchat",
        description="Chat with a local GGUF model, sped up by speculative decoding.",
        epilog="commands:\n"
        + "\n".join(f"  specchat {name:<10} {text}" for name, text in _SUMMARIES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specchat {__version__}")
    ask.add_flags(parser)
    add_model_flags(parser)
    remote.add_flags(parser)
    add_sampling_flags(parser)
    parser.set_defaults(run=ask.run)
    return parser


def _resolve_names(args: argparse.Namespace) -> None:
    """-m and -d may be names instead of files; a server elsewhere has names of its own."""
    if getattr(args, "endpoint", None) is not None:
        return
    if getattr(args, "model", None) or getattr(args, "draft", None):
        from specchat.cli.names import resolve_names

        resolve_names(args)


def _open_streams() -> None:
    """Standard streams that the caller closed (`>&-`) go nowhere, instead of being None.
    What the locale's encoding lacks is written as "?", instead of ending the command.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _complain(message: str) -> None:
    from specchat.engine.text import strip_control

    line = " ".join(strip_control(message).split("\n"))
    print(f"specchat: {line}", file=sys.stderr, flush=True)


def log_file() -> Path:
    import platformdirs

    return Path(platformdirs.user_log_dir("specchat")) / "specchat.log"


class _LogFile(logging.FileHandler):
    """A log that cannot be written is no reason for a traceback, or for losing an answer."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def _log_to_file() -> None:
    """Warnings and tracebacks go to the log file; nothing but answers to the terminal."""
    handler: logging.Handler
    try:
        log_file().parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(log_file(), delay=True, encoding="utf-8")
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger = logging.getLogger("specchat")
    logger.addHandler(handler)
    logger.propagate = False
