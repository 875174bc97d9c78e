"""Opening the history at the start of the app, which never fails."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import platformdirs

from specchat.errors import HistoryDamagedError, HistoryError

from .migrations import beside
from .store import History


def default_path() -> Path:
    """Where the user's chats are kept."""
    return Path(platformdirs.user_data_dir("specchat")) / "history.db"


def open_history(path: Path | None = None) -> tuple[History, str | None]:
    """The history at `path` (default: the user's), and a warning for the user or None.

    A damaged file is moved aside as `history.damaged-YYYYmmdd-HHMMSS.db` and a new one
    begun. If the file was written by a newer specchat, or nothing can be written there, it
    is left alone and the history lives in memory. Never raises HistoryError.
    """
    path = path or default_path()
    inode = _inode(path)
    try:
        return History(path), None
    except HistoryDamagedError as error:
        cause = str(error)
        try:
            aside = _move_aside(path, inode)
            kept = f" It was kept as {aside.name}, and a new history begun." if aside else ""
            return History(path), f"{cause}{kept}"
        except OSError as failure:
            cause += f" It could not be moved aside: {failure.strerror}."
        except HistoryError as failure:
            cause += f" {failure}"
    except HistoryError as error:
        cause = str(error)
    return History(None), f"{cause} Chats of this run are kept in memory only."


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _move_aside(path: Path, inode: int | None) -> Path | None:
    """Rename the damaged file with its journal. None if another process already has."""
    if _inode(path) != inode:
        return None
    aside = beside(path, "damaged")
    os.rename(path, aside)
    for journal in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{journal}", f"{aside}{journal}")
    return aside
