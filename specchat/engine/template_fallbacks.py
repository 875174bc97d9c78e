"""Plainer shapes of a conversation, for templates that refuse the one they were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specchat.engine.messages import Message
from specchat.engine.template_text import literal


def attempts(chat: list[Message]) -> tuple[list[Message], ...]:
    """The chat as it is; with one system message, first, and alternating roles; with none."""
    return (
        chat,
        _merge_runs(_fold_systems(chat, keep_first=True)),
        _merge_runs(_fold_systems(chat, keep_first=False)),
    )


def _fold_systems(chat: Sequence[Message], *, keep_first: bool) -> list[Message]:
    """Put system messages into the next user message, or make one of them."""
    result: list[Message] = []
    pending: list[str] = []
    for position, message in enumerate(chat):
        if message.role == "system" and not (keep_first and position == 0):
            pending.append(message.content)
        elif message.role == "user" and pending:
            result.append(replace(message, content="\n\n".join([*pending, message.content])))
            pending = []
        else:
            result.append(message)
    if pending:
        result.append(Message(literal("user"), "\n\n".join(pending)))
    return result


def _merge_runs(chat: Sequence[Message]) -> list[Message]:
    """Join neighbours of the same role, except tool results and tool calls."""
    result: list[Message] = []
    for message in chat:
        last = result[-1] if result else None
        if last is None or last.role != message.role or message.role == "tool" or last.tool_calls:
            result.append(message)
        else:
            content = "\n\n".join(part for part in (last.content, message.content) if part)
            reasoning = last.reasoning or message.reasoning
            result[-1] = replace(
                last, content=content, reasoning=reasoning, tool_calls=message.tool_calls
            )
    return result
