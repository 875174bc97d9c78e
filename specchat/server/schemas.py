"""Request bodies. Null means absent, unknown fields are ignored, types are not coerced."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_CHOICES = 16
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_PROMPTS = 32

Stop = Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=MAX_STOPS)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Body(BaseModel):
    """Base of everything a client sends."""

    model_config = ConfigDict(strict=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


class Extension(Body):
    """What only specchat has: how to speculate, and what to tell about it."""

    tokens: bool = Field(
        default=False, description="report kinds of tokens and statistics of rounds"
    )
    draft_length: Annotated[int, Field(ge=0)] | Literal["auto"] | None = None
    drafter: Literal["draft", "lookup", "both", "none"] | None = None
    rule: Literal["exact", "match", "typical"] | None = None
    tau: float | None = Field(default=None, gt=0, le=1)


class StreamOptions(Body):
    include_usage: bool = False


class Sampling(Body):
    """Fields that all endpoints share."""

    model: str = Field("", max_length=512, description="ignored: one model is loaded")
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    stream: bool = False
    user: str | None = Field(None, description="ignored")
    # Not OpenAI's, but common among local servers:
    top_k: int | None = Field(None, ge=0, le=10_000_000)
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    specchat: Extension = Extension()


class Generation(Sampling):
    """What chat and plain completions share beyond that."""

    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=MAX_BIASES, description="by token id, or by text"
    )
    max_tokens: int | None = Field(None, ge=0, le=2**31)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    seed: Seed | None = None
    stop: str | Stop = Field(default_factory=list)
    stream_options: StreamOptions = StreamOptions()
    grammar: str | None = Field(None, description="GBNF that the answer must follow")

    @property
    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        return tuple(stop for stop in stops if stop)


class Part(Body):
    """A piece of a message; only texts are understood."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(Body):
    name: str = Field(max_length=256)
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Body):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_call_id: str | None = None
    name: str | None = None


class Function(Body):
    name: str = Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class JsonSchema(Body):
    name: str = ""
    schema_: dict[str, Any] = Field(alias="schema", default_factory=dict)


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="llama.cpp's spelling")


class PredictionContent(Body):
    """Predicted Outputs: the text that much of the answer is expected to repeat."""

    type: Literal["content"] = "content"
    content: str | list[Part]


class ChatRequest(Generation):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_completion_tokens: int | None = Field(None, ge=0, le=2**31)
    response_format: ResponseFormat | None = None
    prediction: PredictionContent | None = None
    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    modalities: list[Literal["text"]] = Field(default_factory=list)
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, max_length=64, description="variables for the chat template"
    )
    continue_final_message: bool | None = Field(
        None, description="go on with a last message of the assistant (default), or answer it"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self


class CompletionRequest(Generation):
    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    ) = ""
    best_of: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)
    suffix: str | None = None
