"""From the messages of a request to the engine's."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.messages import Message
from specchat.server.errors import bad_request
from specchat.server.schemas import ChatMessage, ChatRequest, Part


def messages_of(body: ChatRequest) -> list[Message]:
    """Raises ApiError for content that is no text."""
    names: dict[str, str] = {}  # of called functions, by the id of the call
    found = []
    for at, message in enumerate(body.messages):
        where = f"messages[{at}]"
        if message.role == "user" and message.content is None:
            raise bad_request(f"{where}: a user's message needs content.", f"{where}.content")
        for call in message.tool_calls:
            if call.id:
                names[call.id] = call.function.name
        found.append(_message(message, where, names))
    return found


def _message(message: ChatMessage, where: str, names: dict[str, str]) -> Message:
    name = message.name
    if message.role == "tool" and name is None:
        name = names.get(message.tool_call_id or "")
    return Message(
        role=message.role,
        content=text_of(message.content, f"{where}.content"),
        reasoning=message.reasoning_content,
        tool_calls=tuple(call.model_dump(exclude_none=True) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=name,
    )


def text_of(content: str | Sequence[Part] | None, param: str) -> str:
    """Texts of all parts; nothing remote is ever fetched."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for at, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "input_text", "output_text", "refusal") or text is None:
            raise bad_request(
                f"{param}[{at}]: {part.type[:40]!r} is not supported; this model reads text only.",
                param,
                "unsupported_content",
            )
        texts.append(text)
    return "".join(texts)


def continues(body: ChatRequest) -> bool:
    """Whether to go on with the last message instead of answering it."""
    last = body.messages[-1]
    if body.continue_final_message is None:
        return last.role == "assistant" and not last.tool_calls
    if body.continue_final_message and last.role != "assistant":
        raise bad_request(
            "continue_final_message needs a last message of the assistant.",
            "continue_final_message",
        )
    return body.continue_final_message
