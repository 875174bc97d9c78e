"""Keeps native libraries from writing over the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from specchat.engine.log_file import log_path


@contextmanager
def own_terminal() -> Iterator[None]:
    """Textual draws on a duplicate of stderr; file descriptor 2 itself, which llama.cpp and
    others may print to, goes to the log file.
    """
    kept = os.dup(2)
    screen = os.fdopen(os.dup(kept), "w", encoding="utf-8", errors="replace")
    before = sys.__stderr__
    try:
        log_path().parent.mkdir(parents=True, exist_ok=True)
        log = os.open(log_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 2)
    os.close(log)
    sys.__stderr__ = screen  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stderr__ = before  # type: ignore[misc]
        screen.flush()
        os.dup2(kept, 2)
        os.close(kept)
