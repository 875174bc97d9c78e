"""The user's conversations: trees of messages in an SQLite database.

Everything raises HistoryError when the database cannot be read or written, or when a
conversation or message is gone (another instance may have deleted it). Any thread may call
anything; see database.py.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specchat.engine.text import strip_control
from specchat.errors import HistoryError

from . import search
from .answers import Answers
from .database import Database
from .records import clean
from .rows import BELOW, MESSAGE, gone, insert, leaf_below, path_to, to_conversation, to_message
from .types import Conversation, Message, SearchHit, Status

_TITLE = 60  # characters taken from the first prompt


class History(Answers):
    """The conversations in the file `path`, which is created if missing; None: in memory.

    Raises HistoryError, HistoryDamagedError. The app uses `open_history`, which does not.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__(Database(path))

    @property
    def file(self) -> Path | None:
        """Where it is, None in memory."""
        return self._database.path

    def close(self) -> None:
        """Close the file. Unfinished answers stay partial until the next `recover`."""
        self._database.close()

    # -- conversations --------------------------------------------------------------

    def create(
        self, title: str = "", system_prompt: str = "", settings: Mapping[str, Any] | None = None
    ) -> Conversation:
        """A new, empty conversation. Without a title it takes one from its first prompt."""
        with self._database.write() as db:
            now = time.time()
            id = db.execute(
                "INSERT INTO conversations (title, system_prompt, settings, created, updated) "
                "VALUES (?, ?, ?, ?, ?)",
                (clean(title), clean(system_prompt), json.dumps(settings or {}), now, now),
            ).lastrowid
        assert id is not None
        return self.conversation(id)

    def conversation(self, id: int) -> Conversation:
        """One conversation, deleted or not."""
        rows = self._database.read("SELECT * FROM conversations WHERE id = ?", (id,))
        if not rows:
            raise HistoryError(f"Conversation {id} no longer exists.")
        return to_conversation(rows[0])

    def list_conversations(self, limit: int = -1, offset: int = 0) -> list[Conversation]:
        """Conversations that are not deleted, last written to first."""
        rows = self._database.read(
            "SELECT * FROM conversations WHERE deletion IS NULL "
            "ORDER BY updated DESC, id DESC LIMIT ? OFFSET ?",
            (limit, offset),
        )
        return [to_conversation(row) for row in rows]

    def rename(self, id: int, title: str) -> None:
        self._set(id, "title", clean(title))

    def set_system_prompt(self, id: int, text: str) -> None:
        self._set(id, "system_prompt", clean(text))

    def set_settings(self, id: int, settings: Mapping[str, Any]) -> None:
        """Replace the settings, a JSON object."""
        self._set(id, "settings", json.dumps(settings))

    def set_active_leaf(self, id: int, message_id: int) -> None:
        """Remember which branch is shown."""
        self._set(id, "active_leaf", message_id)

    def fork(self, message_id: int, title: str | None = None) -> Conversation:
        """A new conversation with a copy of everything up to and including a message.

        Answers still being written are copied as far as they are, as stopped.
        """
        with self._database.write() as db:
            path = path_to(db.execute, message_id)
            if not path:
                raise gone(message_id)
            now = time.time()
            new = db.execute(
                "INSERT INTO conversations "
                "(title, system_prompt, settings, created, updated, forked_from) "
                "SELECT coalesce(?, title), system_prompt, settings, ?, ?, id "
                "FROM conversations WHERE id = ?",
                (None if title is None else clean(title), now, now, path[0].conversation_id),
            ).lastrowid
            parent = None
            for m in path:
                status = Status.STOPPED if m.status is Status.PARTIAL else m.status
                parent, old = db.execute(
                    "INSERT INTO messages (conversation_id, parent_id, role, content, reasoning, "
                    "status, created, target, draft, sampling, finish, error, view) "
                    "SELECT ?, ?, role, ?, reasoning, ?, created, target, draft, sampling, "
                    "finish, error, view FROM messages WHERE id = ?",
                    (new, parent, m.content, status, m.id),
                ).lastrowid, m.id  # fmt: skip
                db.execute(
                    "INSERT INTO answer_chunks (message_id, seq, text, record) "
                    "SELECT ?, seq, '', record FROM answer_chunks WHERE message_id = ?",
                    (parent, old),
                )
            db.execute("UPDATE conversations SET active_leaf = ? WHERE id = ?", (parent, new))
        assert new is not None
        return self.conversation(new)

    def delete_conversation(self, id: int) -> int:
        """Hide a conversation. Returns what `undo_delete` takes."""
        with self._database.write() as db:
            deletion = _new_deletion(db)
            changed = db.execute(
                "UPDATE conversations SET deletion = ? WHERE id = ? AND deletion IS NULL",
                (deletion, id),
            ).rowcount
            if not changed:
                raise HistoryError(f"Conversation {id} is deleted already.")
        return deletion

    # -- messages -------------------------------------------------------------------

    def add_message(
        self, conversation_id: int, parent_id: int | None, role: str, content: str
    ) -> Message:
        """Save a finished message below `parent_id` (None: a first message); it becomes the
        active leaf. A second message below the same parent is a branch.
        """
        with self._database.write() as db:
            id = insert(db, conversation_id, parent_id, role, clean(content))
            if role == "user":
                title = strip_control(" ".join(clean(content).split()))
                if len(title) > _TITLE:
                    title = title[: _TITLE - 1].rstrip() + "…"
                db.execute(
                    "UPDATE conversations SET title = ? WHERE id = ? AND title = ''",
                    (title, conversation_id),
                )
        return self.message(id)

    def edit_message(self, message_id: int, content: str) -> Message:
        """Another version of a message: a sibling, without what followed the old one."""
        old = self.message(message_id)
        return self.add_message(old.conversation_id, old.parent_id, old.role, content)

    def delete_message(self, message_id: int) -> int:
        """Hide a message and everything below it. Returns what `undo_delete` takes.

        If the active leaf is among them, a sibling's newest leaf or the parent follows it.
        """
        with self._database.write() as db:
            deletion = _new_deletion(db)
            changed = db.execute(
                f"UPDATE messages SET deletion = ? WHERE deletion IS NULL AND id IN {BELOW}",
                (deletion, message_id),
            ).rowcount
            if not changed:
                raise gone(message_id)
            conversation, parent = db.execute(
                "SELECT conversation_id, parent_id FROM messages WHERE id = ?", (message_id,)
            ).fetchone()
            near = db.execute(
                "SELECT max(id) FROM messages WHERE conversation_id = ? AND parent_id IS ? "
                "AND deletion IS NULL",
                (conversation, parent),
            ).fetchone()[0]
            leaf = parent if near is None else leaf_below(db.execute, near)
            db.execute(
                f"UPDATE conversations SET active_leaf = ? WHERE id = ? AND active_leaf IN {BELOW}",
                (leaf, conversation, message_id),
            )
        return deletion

    def undo_delete(self, deletion: int) -> None:
        """Bring back what one deletion hid, as long as it was not purged."""
        with self._database.write() as db:
            changed = db.execute(
                "UPDATE conversations SET deletion = NULL WHERE deletion = ?", (deletion,)
            ).rowcount
            first = db.execute(
                "SELECT min(m.id), m.conversation_id, p.deletion FROM messages m "
                "LEFT JOIN messages p ON p.id = m.parent_id WHERE m.deletion = ?",
                (deletion,),
            ).fetchone()
            if first[2] is not None:
                raise HistoryError("What this hung on was deleted later. Undo that first.")
            if first[0] is not None:
                changed = db.execute(
                    "UPDATE messages SET deletion = NULL WHERE deletion = ?", (deletion,)
                ).rowcount
                db.execute(
                    "UPDATE conversations SET active_leaf = ? WHERE id = ?",
                    (leaf_below(db.execute, first[0]), first[1]),
                )
            db.execute("DELETE FROM deletions WHERE id = ?", (deletion,))
            if not changed:
                raise HistoryError("This deletion can no longer be undone.")

    def purge(self, older_than: float = 30 * 86400) -> None:
        """Forget what was deleted more than `older_than` seconds ago. Its space is reused, not
        wiped.
        """
        with self._database.write() as db:
            old = "(SELECT id FROM deletions WHERE at <= ?)"
            before = (time.time() - older_than,)
            db.execute(
                f"""WITH RECURSIVE below(id) AS (
                    SELECT id FROM messages WHERE deletion IN {old}
                    UNION SELECT m.id FROM messages m JOIN below ON m.parent_id = below.id)
                DELETE FROM messages WHERE id IN (SELECT id FROM below)""",
                before,
            )
            db.execute(f"DELETE FROM conversations WHERE deletion IN {old}", before)
            db.execute("DELETE FROM deletions WHERE at <= ?", before)

    def path(self, leaf_id: int | None) -> list[Message]:
        """The branch that ends in a message, first message first; [] for None."""
        return [] if leaf_id is None else path_to(self._database.read, leaf_id)

    def siblings(self, message_id: int) -> list[Message]:
        """The message and its branches, oldest first."""
        m = self.message(message_id)
        rows = self._database.read(
            f"SELECT {MESSAGE} FROM messages m "
            "WHERE conversation_id = ? AND parent_id IS ? AND deletion IS NULL ORDER BY id",
            (m.conversation_id, m.parent_id),
        )
        return [to_message(row) for row in rows]

    def newest_leaf(self, message_id: int) -> int:
        """Where to go when the user turns to this branch: the newest message below."""
        return leaf_below(self._database.read, message_id)

    def set_view(self, message_id: int, view: str) -> None:
        """Remember how the reader looks at a message."""
        with self._database.write() as db:
            db.execute("UPDATE messages SET view = ? WHERE id = ?", (view, message_id))

    def questions(self, limit: int = 100) -> list[str]:
        """What the user asked last, in all conversations, oldest first, each once."""
        rows = self._database.read(
            "SELECT content FROM messages WHERE role = 'user' AND deletion IS NULL "
            "GROUP BY content ORDER BY max(id) DESC LIMIT ?",
            (limit,),
        )
        return [row["content"] for row in reversed(rows)]

    def search(self, query: str, limit: int = 50) -> list[SearchHit]:
        """Messages and titles that mention every term of the query (search.py says what a
        term is), newest first. Answers count once they are finished.
        """
        terms = search.terms(query)
        if not terms:
            return []
        condition, arguments = search.where(terms)
        messages = self._database.read(
            "SELECT m.conversation_id, m.id AS message_id, c.title, m.role, m.created, m.content "
            "FROM messages m JOIN conversations c ON c.id = m.conversation_id "
            f"WHERE m.deletion IS NULL AND c.deletion IS NULL AND {condition} "
            "ORDER BY m.created DESC, m.id DESC LIMIT ?",
            (*arguments, limit),
        )
        titles = self._database.read(
            "SELECT id AS conversation_id, NULL AS message_id, title, 'title' AS role, "
            "updated AS created, title AS content FROM conversations WHERE deletion IS NULL "
            + "AND mentions(title, ?) " * len(terms)
            + "ORDER BY updated DESC LIMIT ?",
            (*terms, limit),
        )
        found = sorted([*titles, *messages], key=lambda row: row["created"], reverse=True)
        return [
            SearchHit(
                row["conversation_id"],
                row["message_id"],
                row["title"],
                row["role"],
                row["created"],
                *search.snippet(row["content"], terms),
            )
            for row in found[:limit]
        ]

    def _set(self, id: int, column: str, value: str | int) -> None:
        with self._database.write() as db:
            changed = db.execute(
                f"UPDATE conversations SET {column} = ? WHERE id = ?", (value, id)
            ).rowcount
            if not changed:
                raise HistoryError(f"Conversation {id} no longer exists.")


def _new_deletion(db: sqlite3.Connection) -> int:
    id = db.execute("INSERT INTO deletions (at) VALUES (?)", (time.time(),)).lastrowid
    assert id is not None
    return id
