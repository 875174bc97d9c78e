"""From a request's fields to the engine's settings, over the server's defaults."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from specchat.engine.engine import Engine, Settings
from specchat.engine.grammar import gbnf_from_schema
from specchat.engine.llama import Grammar
from specchat.errors import GrammarError, PromptTooLongError
from specchat.server.errors import bad_request
from specchat.server.schemas import Generation, Sampling

MAX_SCHEMA_DEPTH = 48
MAX_SCHEMA_NODES = 20_000
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")  # the converter writes them out
_MAX_COUNT = 2000
_PROBE_SECONDS = 0.25


def sampled(request: Sampling, defaults: Settings, **more: Any) -> Settings:
    """`defaults` with what the request says; `more` are fields of Settings."""
    names = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty")
    given = {name: getattr(request, name) for name in names}
    if isinstance(request, Generation):
        given |= {
            "frequency_penalty": request.frequency_penalty,
            "presence_penalty": request.presence_penalty,
            "seed": None if request.seed is None else request.seed % 2**64,
        }
    sampling = replace(defaults.sampling, **{k: v for k, v in given.items() if v is not None})
    asked = request.specchat
    speculation = {"rule": asked.rule, "tau": asked.tau, "drafter": asked.drafter}
    given = {k: v for k, v in (speculation | more).items() if v is not None}
    if asked.draft_length is not None:
        given["draft_length"] = None if asked.draft_length == "auto" else asked.draft_length
    return replace(defaults, sampling=sampling, **given)


def biased(settings: Settings, bias: Mapping[str, float], engine: Engine) -> Settings:
    """With a logit bias by token id, or by text (for each of its tokens)."""
    if not bias:
        return settings
    found: dict[int, float] = {}
    for key, value in bias.items():
        digits = key.removeprefix("-")
        if digits.isascii() and digits.isdigit():
            ids = [int(key)] if len(digits) < 12 else [-1]
        else:
            ids = engine.target.tokenizer.tokenize(key)
        for token in ids:
            if not 0 <= token < engine.target.n_vocab:
                raise bad_request(
                    f"logit_bias names token {key[:20]}; this model has ids from 0 to "
                    f"{engine.target.n_vocab - 1}.",
                    "logit_bias",
                )
            found[token] = value
    return replace(settings, sampling=replace(settings.sampling, logit_bias=found))


def checked(settings: Settings, engine: Engine) -> Settings:
    """With the grammar of a schema compiled, so that what is wrong with it shows now."""
    grammar = settings.grammar
    if settings.schema is not None:
        check_schema(settings.schema)
        grammar = gbnf_from_schema(settings.schema)
    if grammar is not None:
        _probe(engine, grammar)
    return replace(settings, schema=None, grammar=grammar)


def _probe(engine: Engine, source: str) -> None:
    """Compile a grammar and see how long it takes to choose a first token, here where it
    holds up nobody. Raises GrammarError.
    """
    with Grammar(engine.target.tokenizer, source) as grammar:
        ids = np.arange(min(256, engine.target.n_vocab), dtype=np.int32)
        start = time.perf_counter()
        grammar.allowed(ids)
        if time.perf_counter() - start > _PROBE_SECONDS:
            raise GrammarError("The grammar is too ambiguous: a token would take it too long.")


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse schemas whose grammars would take unreasonable time or memory to build."""
    left: list[tuple[Any, int]] = [(schema, 1)]
    nodes = 0
    while left:
        value, depth = left.pop()
        nodes += 1
        if depth > MAX_SCHEMA_DEPTH or nodes > MAX_SCHEMA_NODES:
            raise bad_request(
                f"The JSON schema is too large: at most {MAX_SCHEMA_DEPTH} levels and "
                f"{MAX_SCHEMA_NODES} values.",
                "response_format",
            )
        children: list[Any] = []
        if isinstance(value, Mapping):
            children = list(value.values())
            for name in _COUNTS:
                count = value.get(name)
                if isinstance(count, int) and not 0 <= count <= _MAX_COUNT:
                    raise bad_request(
                        f"{name} in a JSON schema must be 0 to {_MAX_COUNT}.", "response_format"
                    )
        elif isinstance(value, list):
            children = value
        left += [(child, depth + 1) for child in children]


def fitting(prompt: list[int], engine: Engine, param: str = "messages") -> list[int]:
    """The prompt, if it fits the context with room for one token."""
    if not prompt:
        raise bad_request("The prompt is empty: there is nothing to continue.", param)
    if len(prompt) >= engine.target.n_ctx:
        raise PromptTooLongError(len(prompt), engine.target.n_ctx)
    return prompt
