"""The body of POST /v1/responses, and the chat request that it amounts to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from specchat.server.errors import bad_request
from specchat.server.schemas import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    ChatRequest,
    PredictionContent,
    Sampling,
    Seed,
)


class Item(Body):
    """One input item: a message, or a tool's call or result."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[dict[str, Any]] | None = None


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextOptions(Body):
    format: Format | None = None
    verbosity: str | None = Field(default=None, description="ignored")


class FunctionTool(Body):
    type: str
    name: str = ""
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class FunctionChoice(Body):
    type: Literal["function"]
    name: str


class ResponsesRequest(Sampling):
    input: str | Annotated[list[Item], Field(max_length=MAX_MESSAGES)] = ""
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=0, le=2**31)
    text: TextOptions = TextOptions()
    tools: list[FunctionTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice = "auto"
    parallel_tool_calls: bool = True
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[str] = Field(default_factory=list, max_length=32)
    metadata: dict[str, str] = Field(default_factory=dict, max_length=16)
    previous_response_id: str | None = Field(None, description="refused: nothing is stored")
    conversation: str | dict[str, Any] | None = Field(None, description="refused")
    background: bool = Field(default=False, description="refused when true")
    store: bool = Field(default=False, description="ignored: nothing is stored")
    # Not OpenAI's:
    seed: Seed | None = None
    prediction: PredictionContent | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, max_length=64)

    @property
    def logprobs(self) -> bool:
        return "message.output_text.logprobs" in self.include or self.top_logprobs is not None


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """Raises ApiError for what needs stored responses or other tools than functions."""
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(body, name):
            raise bad_request(
                f"{name} is not supported: this server stores no responses. Send the whole "
                "conversation as input.",
                name,
                "not_supported",
            )
    for at, tool in enumerate(body.tools):
        if tool.type != "function":
            raise bad_request(
                f"tools[{at}]: only function tools are supported.", "tools", "not_supported"
            )
    choice: Any = body.tool_choice
    if isinstance(choice, FunctionChoice):
        choice = {"type": "function", "function": {"name": choice.name}}
    shared = body.model_dump(include=set(Sampling.model_fields), exclude_none=True)
    return ChatRequest.model_validate(
        {
            **shared,
            "messages": _messages(body),
            "max_completion_tokens": body.max_output_tokens,
            "response_format": _format(body.text.format),
            "tools": [
                {"type": "function", "function": tool.model_dump(exclude={"type"})}
                for tool in body.tools
            ],
            "tool_choice": choice,
            "parallel_tool_calls": body.parallel_tool_calls,
            "logprobs": body.logprobs,
            "top_logprobs": body.top_logprobs,
            "seed": body.seed,
            "prediction": body.prediction.model_dump() if body.prediction else None,
            "chat_template_kwargs": body.chat_template_kwargs,
        }
    )


def _format(format: Format | None) -> dict[str, Any] | None:
    if format is None:
        return None
    if format.type == "json_schema":
        return {"type": "json_schema", "json_schema": {"schema": format.schema_}}
    return {"type": format.type}


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if body.instructions:
        found.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*found, {"role": "user", "content": body.input}]
    for at, item in enumerate(body.input):
        if item.type == "message" and item.role:
            found.append({"role": item.role, "content": item.content})
        elif item.type == "function_call" and item.call_id and item.name:
            call = {
                "id": item.call_id,
                "function": {"name": item.name, "arguments": item.arguments or "{}"},
            }
            if not (found and found[-1]["role"] == "assistant"):
                found.append({"role": "assistant", "content": None})
            found[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output" and item.call_id:
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        elif item.type != "reasoning":  # earlier reasoning is not shown to a model again
            raise bad_request(
                f"input[{at}]: an item of type {item.type[:40]!r} like this is not supported.",
                "input",
                "not_supported",
            )
    if not found:
        raise bad_request("input has no message.", "input")
    return found
