"""Tools: how a model is told of them, how its calls look, and how a call is enforced."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specchat.engine.messages import Message
from specchat.engine.template import ChatTemplate
from specchat.server.call_formats import HERMES, CallFormat, of_template
from specchat.server.errors import bad_request
from specchat.server.schemas import ChatRequest, NamedTool, Tool

_INSTRUCTIONS = """\
You may call functions to help with the user's request. Their signatures are:
<tools>
{tools}
</tools>
For each call write one JSON object with the function's name and arguments like this:
{call}"""


def is_native(template: ChatTemplate) -> bool:
    """Whether the template itself tells the model of tools."""
    return "tools" in template.source


def call_format(template: ChatTemplate, tools: Sequence[Tool]) -> CallFormat:
    """How calls of these tools will look. Templates that know no tools may still tell by their
    marks what the model was trained on; otherwise `instructed` asks for Hermes' way.
    """
    format = of_template(template.source) or HERMES
    if not is_native(template) and not format.end:
        format = HERMES
    schemas = {tool.function.name: tool.function.parameters for tool in tools}
    return replace(format, schemas=schemas)


def offered(request: ChatRequest) -> list[Tool]:
    """The tools that the model may call. Raises ApiError for a choice that is not there."""
    choice = request.tool_choice
    if choice == "none":
        return []
    names = [tool.function.name for tool in request.tools]
    if len(set(names)) < len(names):
        raise bad_request("Two tools have the same name.", "tools")
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise bad_request(
                f"tool_choice names {choice.function.name!r}, which is not among the tools.",
                "tool_choice",
            )
    elif choice == "required" and not names:
        raise bad_request("tool_choice is required, but there are no tools.", "tool_choice")
    return request.tools


def is_forced(request: ChatRequest) -> bool:
    return request.tool_choice not in ("none", "auto")


def described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As templates expect them."""
    return [
        {"type": "function", "function": tool.function.model_dump(exclude_defaults=False)}
        for tool in tools
    ]


def instructed(
    messages: Sequence[Message], tools: Sequence[Tool], format: CallFormat
) -> list[Message]:
    """For templates that know no tools: tools, calls and results as plain text."""
    chat = [_as_text(message, format) for message in messages]
    if not tools:
        return chat
    lines = "\n".join(json.dumps(tool) for tool in described(tools))
    text = _INSTRUCTIONS.format(
        tools=lines, call=_written("the function's name", {"argument": "value"}, format)
    )
    if chat and chat[0].role in ("system", "developer"):
        return [replace(chat[0], content=f"{chat[0].content}\n\n{text}"), *chat[1:]]
    return [Message("system", text), *chat]


def _written(name: str, arguments: Any, format: CallFormat) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"{format.start}\n{call}\n{format.end}"


def _as_text(message: Message, format: CallFormat) -> Message:
    if message.role == "tool":
        text = f"<tool_response>\n{message.content}\n</tool_response>"
        return Message("user", text)
    if not message.tool_calls:
        return message
    calls = []
    for call in message.tool_calls:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):
                arguments = json.loads(arguments)
        calls.append(_written(function["name"], arguments, format))
    parts = [message.content, *calls] if message.content else calls
    return replace(message, content="\n".join(parts), tool_calls=())


def call_schema(request: ChatRequest, format: CallFormat) -> dict[str, Any]:
    """The JSON schema of what follows the prefix of a required call."""
    tools = request.tools
    if isinstance(request.tool_choice, NamedTool):
        wanted = request.tool_choice.function.name
        tools = [tool for tool in tools if tool.function.name == wanted]
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        function = tool.function
        parameters = function.parameters or {"type": "object", "properties": {}}
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    format.key: _hoisted(parameters, function.name, definitions),
                },
                "required": ["name", format.key],
                "additionalProperties": False,
            }
        )
    one: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if format.array:
        most = 8 if request.parallel_tool_calls else 1
        one = {"type": "array", "items": one, "minItems": 1, "maxItems": most}
    return {**one, "$defs": definitions} if definitions else one


def _hoisted(schema: Mapping[str, Any], name: str, definitions: dict[str, Any]) -> Any:
    """A function's parameters with their definitions moved to the root, under its name."""
    prefixes = ("#/$defs/", "#/definitions/")

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, dict):
            return value
        result = {k: moved(v) for k, v in value.items()}
        ref = value.get("$ref")
        if isinstance(ref, str):
            for prefix in prefixes:
                if ref.startswith(prefix):
                    result["$ref"] = f"#/$defs/{name}.{ref.removeprefix(prefix)}"
        return result

    rest = {k: v for k, v in schema.items() if k not in ("$defs", "definitions")}
    for key in ("$defs", "definitions"):
        found = schema.get(key)
        if isinstance(found, dict):
            definitions.update({f"{name}.{k}": moved(v) for k, v in found.items()})
    return moved(rest)
