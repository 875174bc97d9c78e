"""What the history hands out: immutable values. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from specchat.engine.events import Finish, Round, Token


class Status(StrEnum):
    PARTIAL = "partial"  # being written, by the process that owns it
    DONE = "done"
    STOPPED = "stopped"  # by the user, or because its process died
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Conversation:
    """`active_leaf` is the last message of the branch shown, None while there is none.

    `forked_from` is the conversation it was copied from. `settings` is any JSON object.
    """

    id: int
    title: str
    system_prompt: str
    settings: dict[str, Any]
    created: float
    updated: float
    active_leaf: int | None
    forked_from: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """One node of a conversation's tree. Messages with the same parent are branches.

    `content` is what was written so far. `target` and `draft` name the models ("" for none),
    `sampling` is any JSON object, `error` says what went wrong with status "error", `view`
    is how the reader last looked at it ("" for never chosen).
    """

    id: int
    conversation_id: int
    parent_id: int | None
    role: str
    content: str
    reasoning: str = ""
    status: Status = Status.DONE
    created: float = 0.0
    target: str = ""
    draft: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    finish: Finish | None = None
    error: str = ""
    view: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """How an answer came about. Empty for messages that nobody generated."""

    tokens: tuple[Token, ...] = ()
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One place where a search matched: a message, or with `message_id` None a title.

    `highlights` are (start, end) character offsets into `snippet`, in order, disjoint.
    """

    conversation_id: int
    message_id: int | None
    title: str
    role: str
    created: float
    snippet: str
    highlights: tuple[tuple[int, int], ...]
