"""What different servers take beyond OpenAI's own parameters, and how requests to them read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from specchat.engine.engine import Settings
from specchat.engine.messages import Message
from specchat.engine.sampling import SamplingParams
from specchat.errors import BadRequestError

_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_NEUTRAL = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
_MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server. `names` are its parameters for fields of ours that OpenAI lacks;
    `asks` and `stream_asks` (in stream_options) make it tell figures while it streams;
    `continues` makes it go on with the last message, None: it cannot. `remembers`: it takes
    the reasoning of earlier answers.
    """

    name: str
    names: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, Any] = field(default_factory=dict)
    stream_asks: Mapping[str, Any] = field(default_factory=dict)
    continues: Mapping[str, Any] | None = None
    remembers: bool = False


_BOTH = {"top_k": "top_k", "min_p": "min_p"}
SPECCHAT = Dialect(
    "specchat",
    _BOTH | {"repeat_penalty": "repeat_penalty", "grammar": "grammar"},
    continues={"continue_final_message": True},
    remembers=True,
)
LLAMA_SERVER = Dialect(
    "llama-server",
    _BOTH | {"repeat_penalty": "repeat_penalty", "penalty_last_n": "repeat_last_n",
             "grammar": "grammar"},
    {"timings_per_token": True, "return_progress": True},
    continues=_CONTINUE,
    remembers=True,
)  # fmt: skip
VLLM = Dialect(
    "vLLM",
    _BOTH | {"repeat_penalty": "repetition_penalty"},
    stream_asks={"continuous_usage_stats": True},
    continues=_CONTINUE,
)
SGLANG = Dialect(
    "SGLang",
    _BOTH | {"repeat_penalty": "repetition_penalty"},
    continues={"continue_final_message": True},
)
OTHER = Dialect("the server")

# By what /v1/models says of a model's owner.
_OWNERS = {"specchat": SPECCHAT, "llamacpp": LLAMA_SERVER, "vllm": VLLM, "sglang": SGLANG}


def dialect_of(owner: str) -> Dialect:
    return _OWNERS.get(owner, OTHER)


@dataclass(frozen=True, slots=True)
class Body:
    """A request, and the fields of `SamplingParams` that were left out of it: at their
    defaults, and unknown to the server.
    """

    json: dict[str, Any]
    left_out: tuple[str, ...]


def chat_body(
    dialect: Dialect,
    model: str,
    messages: Sequence[Message],
    settings: Settings,
    *,
    continue_final: bool = False,
) -> Body:
    """Raises BadRequestError for what was asked for and the server does not take."""
    sampling, left_out = _sampling(dialect, settings.sampling)
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(m, dialect) for m in messages],
        "stream": True,
        "stream_options": {"include_usage": True, **dialect.stream_asks},
        **dialect.asks,
        **sampling,
        **_speculation(dialect, settings),
        **_constraint(dialect, settings),
    }
    if settings.max_tokens is not None:
        body["max_tokens"] = settings.max_tokens
    if settings.stops:
        body["stop"] = list(settings.stops)
    if settings.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": min(settings.logprobs, _MOST_LOGPROBS)}
    if continue_final:
        if dialect.continues is None:
            raise BadRequestError(f"{dialect.name} cannot go on with an answer; ask again instead.")
        body |= dialect.continues
    return Body(body, left_out)


def _sampling(dialect: Dialect, params: SamplingParams) -> tuple[dict[str, Any], tuple[str, ...]]:
    """OpenAI's own parameters always, others by the names that the server has for them."""
    body: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p}
    for name in ("presence_penalty", "frequency_penalty"):
        if value := getattr(params, name):
            body[name] = value
    if params.seed is not None:
        body["seed"] = params.seed
    if params.logit_bias:
        body["logit_bias"] = {str(id): _bias(b) for id, b in params.logit_bias.items()}
    defaults = {f.name: f.default for f in fields(SamplingParams)}
    left_out = []
    for name, neutral in _NEUTRAL.items():
        value = getattr(params, name)
        if name in dialect.names:
            body[dialect.names[name]] = value
        elif value != neutral:
            if value != defaults[name]:
                raise _refused(dialect, name)
            left_out.append(name)
    if dialect in (VLLM, SGLANG) and params.top_k == 0:
        body["top_k"] = -1  # theirs for all tokens
    if "penalty_last_n" in dialect.names:
        body[dialect.names["penalty_last_n"]] = params.penalty_last_n
    elif params.penalty_last_n != defaults["penalty_last_n"]:
        raise _refused(dialect, "penalty_last_n")
    return body, tuple(left_out)


def _bias(bias: float) -> float:
    if bias > 100 or math.isnan(bias):
        raise BadRequestError(f"A logit bias is at most 100 there, not {bias}.", "logit_bias")
    return max(bias, -100.0)  # which forbids a token


def _speculation(dialect: Dialect, settings: Settings) -> dict[str, Any]:
    """How to draft: specchat takes it from its clients, others decide themselves."""
    defaults = Settings()
    names = ("rule", "tau", "drafter", "draft_length")
    asked = {n: getattr(settings, n) for n in names if getattr(settings, n) != getattr(defaults, n)}
    if dialect is SPECCHAT:
        return {"specchat": {"tokens": True, **asked}}
    for name in asked:
        raise _refused(dialect, name)
    return {}


def _constraint(dialect: Dialect, settings: Settings) -> dict[str, Any]:
    if settings.grammar is not None:
        if "grammar" not in dialect.names:
            raise BadRequestError(
                f"{dialect.name} takes no GBNF grammar; a JSON schema it may.", "grammar"
            )
        return {dialect.names["grammar"]: settings.grammar}
    if settings.schema is not None:
        named = {"name": "answer", "strict": True, "schema": settings.schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {}


def _refused(dialect: Dialect, name: str) -> BadRequestError:
    return BadRequestError(
        f"{dialect.name} takes no {name} (--{name.replace('_', '-')}) from its clients; "
        "leave it at its default.",
        name,
    )


def _message(message: Message, dialect: Dialect) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning and dialect.remembers:
        sent["reasoning_content"] = message.reasoning
    if message.tool_calls:
        sent["tool_calls"] = list(message.tool_calls)
    for name in ("tool_call_id", "name"):
        if value := getattr(message, name):
            sent[name] = value
    return sent
