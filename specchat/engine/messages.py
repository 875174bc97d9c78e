"""A chat message as the engine knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    `role` is "system" ("developer" means the same), "user", "assistant" or "tool"; other
    roles are handed to the template as they are. `reasoning` is what an assistant thought
    before `content`. `tool_calls` are OpenAI-shaped: {"id", "type": "function",
    "function": {"name", "arguments"}} with arguments as JSON text or an object.
    `tool_call_id` and `name` belong to a tool's result.
    """

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
