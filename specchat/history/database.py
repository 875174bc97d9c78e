"""The history's connections: opening, transactions, threads, and errors put into words.

Any thread may use a Database. Writes go through one connection, one at a time, and reads
through another, so a reader waits neither for a writing thread nor for another process.
(In memory there is only one connection.)
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specchat.errors import HistoryDamagedError, HistoryError

from .migrations import check_version, migrate

_BUSY_SECONDS = 5.0
_WAYS_OUT = {
    sqlite3.SQLITE_BUSY: "Another specchat keeps it busy; try again.",
    sqlite3.SQLITE_FULL: "Free some disk space.",
    sqlite3.SQLITE_IOERR: "Check the disk and its free space.",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable.",
    sqlite3.SQLITE_CANTOPEN: "Check that the file and its folder can be read and written.",
}


class Database:
    """The SQLite file `path`, up to date; None for one in memory.

    Raises HistoryError if it cannot be opened or written, HistoryDamagedError if it is
    not a sound database.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._open: list[sqlite3.Connection] = []
        try:
            with self._explained("opened"):
                self._writer = self._connect()
                self._prepare()
                self._reader = self._writer if path is None else self._connect()
        except BaseException:
            self.close()
            raise
        self._write_lock = threading.RLock()
        self._read_lock = self._write_lock if path is None else threading.RLock()

    def read(self, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """All rows of a query, as last committed. Raises HistoryError."""
        with self._read_lock, self._explained("read"):
            return self._reader.execute(sql, arguments).fetchall()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed at the end of the block, undone by an exception.

        Waits up to five seconds for other processes. Raises HistoryError.
        """
        with self._write_lock, self._explained("written"):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                check_version(self._writer, self.path)  # a newer specchat may have migrated it
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connections. Nothing else may be called afterwards."""
        while self._open:
            self._open.pop().close()

    def _connect(self) -> sqlite3.Connection:
        if self.path is not None and not self.path.exists():
            # Chats are private. (Never open an existing file besides SQLite: closing it
            # would drop the locks this process has on it.)
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process was faster
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            self.path or ":memory:",
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        self._open.append(connection)
        connection.row_factory = sqlite3.Row
        connection.create_function("mentions", 2, _mentions, deterministic=True)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _prepare(self) -> None:
        """Check and migrate. Repeated while busy: SQLite waits for most locks, but six
        processes that started at once saw "locked" immediately, once in about 700 openings.
        """
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                check_version(self._writer, self.path)
                problem = self._writer.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise HistoryDamagedError(f"The history {self.path} is damaged: {problem}.")
                self._writer.execute("PRAGMA journal_mode = WAL")
                migrate(self._writer, self.path)
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HistoryError(
                f"The history {self.path} could not be {what}: {error.strerror or error}. "
                "Check the folder and its free space."
            ) from error
        except sqlite3.Error as error:
            code = _code(error)
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise HistoryDamagedError(
                    f"The history {self.path} is damaged: {error}."
                ) from error
            way_out = _WAYS_OUT.get(code, "")
            where = self.path or "in memory"
            raise HistoryError(
                f"The history {where} could not be {what}: {error}. {way_out}".rstrip()
            ) from error


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for errors of Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _mentions(text: str, term: str) -> bool:
    """The SQL function: `text` contains `term`, whatever the case."""
    return re.search(re.escape(term), text, re.IGNORECASE) is not None
