"""The part of the history that a running generation writes to.

An answer grows by chunks, each one commit, so what was appended survives the death of the
process; finishing turns the chunks into one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from specchat.engine.events import Finish, Round, Token
from specchat.errors import HistoryError

from .database import Database
from .owners import is_alive, this_process
from .records import clean, merge, pack, pack_finish, unpack
from .rows import MESSAGE, gone, insert, to_message
from .types import Message, Record, Status


class Answers:
    """Begin, append, finish; and what is left of answers nobody finished."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def message(self, id: int) -> Message:
        """One message, deleted or not."""
        rows = self._database.read(f"SELECT {MESSAGE} FROM messages m WHERE id = ?", (id,))
        if not rows:
            raise gone(id)
        return to_message(rows[0])

    def begin_answer(
        self,
        conversation_id: int,
        parent_id: int | None,
        target: str,
        draft: str = "",
        sampling: Mapping[str, Any] | None = None,
    ) -> Message:
        """An empty partial answer below `parent_id`, owned by this process. It becomes the
        active leaf.
        """
        with self._database.write() as db:
            id = insert(db, conversation_id, parent_id, "assistant", "", Status.PARTIAL)
            db.execute(
                "UPDATE messages SET target = ?, draft = ?, sampling = ?, owner = ? WHERE id = ?",
                (clean(target), clean(draft), json.dumps(sampling or {}), this_process(), id),
            )
        return self.message(id)

    def resume_answer(self, message_id: int) -> None:
        """Make a finished answer partial again, to append to it. Its finish is forgotten."""
        with self._database.write() as db:
            changed = db.execute(
                "UPDATE messages SET status = 'partial', finish = NULL, error = '', owner = ? "
                "WHERE id = ? AND deletion IS NULL",
                (this_process(), message_id),
            ).rowcount
            if not changed:
                raise gone(message_id)

    def append_answer(
        self, message_id: int, tokens: Sequence[Token], rounds: Sequence[Round] = ()
    ) -> None:
        """Save what came since the last call; about every 250 ms is right. One commit."""
        with self._database.write() as db:
            changed = db.execute(
                "INSERT INTO answer_chunks (message_id, seq, text, record) SELECT id, "
                "(SELECT coalesce(max(seq) + 1, 0) FROM answer_chunks WHERE message_id = m.id), "
                "?, ? FROM messages m WHERE id = ?",
                (clean("".join(t.text for t in tokens)), pack(tokens, rounds), message_id),
            ).rowcount
            if not changed:
                raise gone(message_id)

    def finish_answer(
        self,
        message_id: int,
        status: Status,
        finish: Finish | None = None,
        *,
        content: str | None = None,
        reasoning: str = "",
        error: str = "",
    ) -> Message:
        """The end of an answer, for whatever reason; makes it searchable.

        `content` None means the text of all tokens; give it, and `reasoning`, where the
        text was split in two. `error` is what to tell the user with status "error".
        """
        with self._database.write() as db:
            _finish(db, message_id, status, content)
            db.execute(
                "UPDATE messages SET finish = ?, reasoning = ?, error = ? WHERE id = ?",
                (finish and pack_finish(finish), clean(reasoning), clean(error), message_id),
            )
        return self.message(message_id)

    def record(self, message_id: int) -> Record:
        """Tokens and rounds of an answer as far as saved. Raises HistoryError if damaged."""
        rows = self._database.read(
            "SELECT record FROM answer_chunks WHERE message_id = ? ORDER BY seq", (message_id,)
        )
        parts = [unpack(row["record"]) for row in rows]
        return Record(
            tuple(token for part in parts for token in part.tokens),
            tuple(round for part in parts for round in part.rounds),
        )

    def recover(self) -> list[int]:
        """Mark answers whose process died as stopped, with the text so far.

        Answers of processes that live are left alone. Returns the ids of those it marked.
        """
        partial = "SELECT id, owner FROM messages WHERE status = 'partial'"
        if not any(not is_alive(row["owner"]) for row in self._database.read(partial)):
            return []
        with self._database.write() as db:
            dead = [row["id"] for row in db.execute(partial) if not is_alive(row["owner"])]
            for id in dead:
                _finish(db, id, Status.STOPPED, None)
        return dead


def _finish(db: sqlite3.Connection, message_id: int, status: Status, content: str | None) -> None:
    row = db.execute(f"SELECT {MESSAGE} FROM messages m WHERE id = ?", (message_id,)).fetchone()
    if row is None:
        raise gone(message_id)
    db.execute(
        "UPDATE messages SET content = ?, status = ?, owner = NULL WHERE id = ?",
        (row["content"] if content is None else clean(content), status, message_id),
    )
    db.execute("UPDATE answer_chunks SET text = '' WHERE message_id = ?", (message_id,))
    blobs = [
        chunk["record"]
        for chunk in db.execute(
            "SELECT record FROM answer_chunks WHERE message_id = ? ORDER BY seq", (message_id,)
        )
    ]
    if len(blobs) > 1:
        with suppress(HistoryError):  # damaged: stays in pieces, but the text is safe
            whole = merge(blobs)
            db.execute("DELETE FROM answer_chunks WHERE message_id = ?", (message_id,))
            db.execute("INSERT INTO answer_chunks VALUES (?, 0, '', ?)", (message_id, whole))
