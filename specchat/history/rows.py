"""Queries that several parts of the history share, and rows turned into values."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any

from specchat.errors import HistoryError

from .records import unpack_finish
from .types import Conversation, Message, Status

Query = Callable[[str, tuple[Any, ...]], Iterable[sqlite3.Row]]

# The columns of message m; its content includes what is still in chunks.
MESSAGE = """m.id, m.conversation_id, m.parent_id, m.role, m.reasoning, m.status, m.created,
    m.target, m.draft, m.sampling, m.finish, m.error, m.view, m.content || coalesce((
        SELECT group_concat(text, '') FROM (
            SELECT text FROM answer_chunks WHERE message_id = m.id ORDER BY seq)), '') AS content"""

# The ids of a message (the argument) and of everything under it. A subquery, because
# Python 3.11 does not count the rows of an UPDATE that begins with WITH.
BELOW = """(WITH RECURSIVE below(id) AS (
    VALUES (?) UNION SELECT m.id FROM messages m JOIN below ON m.parent_id = below.id)
    SELECT id FROM below)"""


def path_to(query: Query, leaf_id: int) -> list[Message]:
    """The branch that ends in a message, first message first; deleted ones are left out."""
    rows = query(
        f"""WITH RECURSIVE up(id, parent, height) AS (
            SELECT id, parent_id, 0 FROM messages WHERE id = ?
            UNION ALL
            SELECT m.id, m.parent_id, height + 1 FROM messages m JOIN up ON m.id = up.parent)
        SELECT {MESSAGE} FROM up JOIN messages m ON m.id = up.id
        WHERE m.deletion IS NULL ORDER BY height DESC""",
        (leaf_id,),
    )
    return [to_message(row) for row in rows]


def leaf_below(query: Query, message_id: int) -> int:
    """The newest message under a message, or itself. Ids grow, so the newest is a leaf."""
    rows = query(
        f"SELECT max(id) FROM messages WHERE deletion IS NULL AND id IN {BELOW}",
        (message_id,),
    )
    leaf: int | None = next(iter(rows))[0]
    return message_id if leaf is None else leaf


def insert(
    db: sqlite3.Connection, conversation_id: int, parent_id: int | None, role: str, content: str,
    status: Status = Status.DONE,
) -> int:  # fmt: skip
    """Add a message and make it the active leaf. Returns its id."""
    if parent_id is not None:
        parent = db.execute(
            "SELECT 1 FROM messages WHERE id = ? AND conversation_id = ? AND deletion IS NULL",
            (parent_id, conversation_id),
        ).fetchone()
        if parent is None:
            raise gone(parent_id)
    now = time.time()
    if not db.execute(
        "UPDATE conversations SET updated = ? WHERE id = ? AND deletion IS NULL",
        (now, conversation_id),
    ).rowcount:
        raise HistoryError(f"Conversation {conversation_id} was deleted.")
    id = db.execute(
        "INSERT INTO messages (conversation_id, parent_id, role, content, status, created) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (conversation_id, parent_id, role, content, status, now),
    ).lastrowid
    assert id is not None
    db.execute("UPDATE conversations SET active_leaf = ? WHERE id = ?", (id, conversation_id))
    return id


def gone(message_id: int) -> HistoryError:
    return HistoryError(f"Message {message_id} was deleted.")


def to_conversation(row: sqlite3.Row) -> Conversation:
    names = ("created", "updated", "active_leaf", "forked_from")
    return Conversation(
        row["id"], row["title"], row["system_prompt"], json.loads(row["settings"]),
        *(row[name] for name in names),
    )  # fmt: skip


def to_message(row: sqlite3.Row) -> Message:
    fields: dict[str, Any] = {name: row[name] for name in row.keys()}  # noqa: SIM118 (rows iterate values)
    fields["status"] = Status(row["status"])
    fields["sampling"] = json.loads(row["sampling"])
    fields["finish"] = unpack_finish(row["finish"])
    return Message(**fields)
