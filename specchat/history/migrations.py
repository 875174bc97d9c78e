"""The schema of the history, as the list of steps that led to it.

Steps are only ever appended: `PRAGMA user_version` of a file is the number of steps it has
seen, and a published step must do the same for everybody.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from specchat.errors import HistoryError

Migration = tuple[str, ...] | Callable[[sqlite3.Connection], None]

APPLICATION_ID = 0x53504348  # "SPCH": a file with tables and another id is not ours

_CHATS = (
    # One row per deletion: undo clears the marks that point to it, purging drops the marked.
    "CREATE TABLE deletions (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL)",
    """CREATE TABLE conversations (
        id INTEGER PRIMARY KEY AUTOINCREMENT,  -- ids are never used twice
        title TEXT NOT NULL,
        system_prompt TEXT NOT NULL,
        settings TEXT NOT NULL,                -- a JSON object
        created REAL NOT NULL,
        updated REAL NOT NULL,
        active_leaf INTEGER,                   -- not a foreign key: they would form a circle
        forked_from INTEGER,
        deletion INTEGER REFERENCES deletions
    )""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
        -- No cascade: SQLite nests cascades at most 1,000 deep and chats may be longer.
        parent_id INTEGER REFERENCES messages DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        reasoning TEXT NOT NULL DEFAULT '',
        status TEXT NOT NULL CHECK (status IN ('partial', 'done', 'stopped', 'error')),
        created REAL NOT NULL,
        target TEXT NOT NULL DEFAULT '',
        draft TEXT NOT NULL DEFAULT '',
        sampling TEXT NOT NULL DEFAULT '{}',
        finish TEXT,
        error TEXT NOT NULL DEFAULT '',
        view TEXT NOT NULL DEFAULT '',
        owner TEXT,                            -- of a partial answer: the process writing it
        deletion INTEGER REFERENCES deletions
    )""",
    # What an answer still being written adds to its message's content, and token records.
    """CREATE TABLE answer_chunks (
        message_id INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
        seq INTEGER NOT NULL,
        text TEXT NOT NULL,
        record BLOB NOT NULL,
        PRIMARY KEY (message_id, seq)
    )""",
    "CREATE INDEX conversations_by_time ON conversations (updated)",
    "CREATE INDEX messages_by_parent ON messages (conversation_id, parent_id)",
    "CREATE INDEX messages_parent ON messages (parent_id)",
    "CREATE INDEX messages_partial ON messages (status) WHERE status = 'partial'",
    "CREATE INDEX messages_deleted ON messages (deletion) WHERE deletion IS NOT NULL",
    "CREATE INDEX conversations_deleted ON conversations (deletion) WHERE deletion IS NOT NULL",
)

_SEARCH = (
    # Trigrams find parts of words, code, and Chinese or Japanese, which has no spaces.
    """CREATE VIRTUAL TABLE message_search USING fts5(
        content, content='messages', content_rowid='id', tokenize='trigram')""",
    "INSERT INTO message_search (message_search) VALUES ('rebuild')",
    """CREATE TRIGGER message_search_insert AFTER INSERT ON messages BEGIN
        INSERT INTO message_search (rowid, content) VALUES (new.id, new.content);
    END""",
    """CREATE TRIGGER message_search_delete AFTER DELETE ON messages BEGIN
        INSERT INTO message_search (message_search, rowid, content)
        VALUES ('delete', old.id, old.content);
    END""",
    """CREATE TRIGGER message_search_update AFTER UPDATE OF content ON messages BEGIN
        INSERT INTO message_search (message_search, rowid, content)
        VALUES ('delete', old.id, old.content);
        INSERT INTO message_search (rowid, content) VALUES (new.id, new.content);
    END""",
)

MIGRATIONS: Sequence[Migration] = (_CHATS, _SEARCH)


def check_version(
    connection: sqlite3.Connection, path: Path | None, migrations: Sequence[Migration] = MIGRATIONS
) -> int:
    """How many steps the database has seen. Reads only.

    Raises HistoryError if a newer specchat, or another program, wrote it.
    """
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    mine: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and mine != APPLICATION_ID:
        raise HistoryError(
            f"{path} is a database of another program. It is left as it is; move it away "
            "to let specchat keep its history there."
        )
    if version > len(migrations):
        raise HistoryError(
            f"The history {path} was written by a newer specchat (format {version}; this one "
            f"knows {len(migrations)}). It is left as it is; update specchat to see it, or "
            "move it away to start a new one."
        )
    return version


def migrate(
    connection: sqlite3.Connection, path: Path | None, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Bring a database up to date, in one transaction that other processes wait for.

    A database that holds anything is first copied beside itself, as
    `history.vN-YYYYmmdd-HHMMSS.db`. On any error it is left as it was.
    Raises HistoryError (see `check_version`), OSError, sqlite3.Error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = check_version(connection, path, migrations)
        if path is not None and 0 < version < len(migrations):
            _back_up(path, version)
        for step in migrations[version:]:
            if callable(step):
                step(connection)
            else:
                for statement in step:
                    connection.execute(statement)
        # Written even when nothing changed: shows now, not later, that writing is possible.
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def beside(path: Path, what: str) -> Path:
    """An unused name such as `history.WHAT-20250131-235959.db` beside `path`."""
    stem = f"{path.stem}.{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    number, name = 1, path.with_name(f"{stem}{path.suffix}")
    while name.exists():
        number += 1
        name = path.with_name(f"{stem}-{number}{path.suffix}")
    return name


def _back_up(path: Path, version: int) -> None:
    final = beside(path, f"v{version}")
    part = final.with_name(f"{final.name}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        part.replace(final)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
