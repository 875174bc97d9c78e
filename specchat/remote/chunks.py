"""What comes in a stream of chat.completion.chunk objects, as far as it is understood.

Unknown fields are ignored, and null means absent: servers differ in what they add.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from specchat.engine.events import Kind


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


def _or_nothing(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


# Figures that another server gives another shape are no reason to lose its words.
_Lenient = WrapValidator(_or_nothing)


class Delta(_Part):
    content: str = ""
    reasoning_content: str = ""
    reasoning: str = ""  # what vLLM and others call it


class Candidate(_Part):
    """A token with its log-probability; `bytes` where it is not whole characters."""

    token: str
    logprob: float | None = None
    bytes: list[int] | None = None


class Logprob(Candidate):
    top_logprobs: list[Candidate] = []


class Logprobs(_Part):
    content: list[Logprob] = []


class Refused(_Part):
    id: int
    text: str
    p: float
    q: float


class SpecchatToken(_Part):
    id: int
    text: str
    kind: Kind
    text_kind: Kind | None = None
    round: int
    p: float
    q: float | None = None
    acceptance: float | None = None
    rejected: Refused | None = None


class SpecchatRound(_Part):
    """Field by field an `events.Round`."""

    index: int
    drafter: str
    draft_length: int
    accepted: int
    emitted: int
    depth: int
    draft_seconds: float
    verify_seconds: float
    sample_seconds: float
    total_seconds: float
    draft_tokens: tuple[tuple[int, str], ...] = ()
    rejected: tuple[tuple[int, str], ...] = ()
    replacement: tuple[int, str] | None = None
    reason: str = ""


class Specchat(_Part):
    tokens: list[SpecchatToken] = []
    round: SpecchatRound | None = None


class Choice(_Part):
    index: int = 0
    delta: Delta = Delta()
    finish_reason: str | None = None
    logprobs: Logprobs = Logprobs()
    specchat: Specchat = Specchat()


class PromptDetails(_Part):
    cached_tokens: int | None = None


class Counts(_Part):
    """OpenAI's usage."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails = PromptDetails()


class Timings(_Part):
    """llama-server's; milliseconds. The draft's counts are left out where nothing was drafted."""

    prompt_n: int = 0
    cache_n: int | None = None
    prompt_ms: float = 0.0
    predicted_n: int
    predicted_ms: float
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class Progress(_Part):
    """llama-server's, while it reads the prompt; tokens."""

    total: int
    cache: int = 0
    processed: int


class Chunk(_Part):
    choices: list[Choice] = []
    usage: Annotated[Counts | None, _Lenient] = None
    timings: Annotated[Timings | None, _Lenient] = None
    prompt_progress: Annotated[Progress | None, _Lenient] = None
    error: Any = None


def parse(data: str) -> Chunk | None:
    """The chunk, or None where it is not one."""
    try:
        return Chunk.model_validate_json(data)
    except ValidationError:
        return None
