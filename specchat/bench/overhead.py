"""What our plain decoding costs on top of a bare llama_decode loop with argmax."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from specchat.engine.batch import drive
from specchat.engine.events import Round
from specchat.engine.llama import LlamaCache, LlamaModel
from specchat.engine.loop import Generation, Request
from specchat.engine.policy import FixedLength
from specchat.engine.rules import Exact
from specchat.engine.sampling import Chain, SamplingParams

BLOCK = 32  # tokens timed together
_PROMPT = "Once upon a time there was a small town between two mountains."


@dataclass(frozen=True, slots=True)
class Overhead:
    """Median seconds per token of one way to decode, and what it adds to the bare loop.

    `extra` is the median of the differences of neighbouring blocks.
    """

    name: str
    seconds: float
    extra: float


def measure(model: LlamaModel, blocks: int, tick: Callable[[], None]) -> list[Overhead]:
    """Time blocks of `BLOCK` tokens of the bare loop, greedy and sampled, in turn."""
    cache = model.new_cache()
    prompt = model.tokenizer.tokenize(_PROMPT)
    if model.tokenizer.add_bos and model.tokenizer.bos is not None:
        prompt = [model.tokenizer.bos, *prompt]
    ways: dict[str, Callable[[], float]] = {
        "bare loop": lambda: _bare(model, cache, prompt),
        "greedy": lambda: _ours(model, cache, prompt, SamplingParams(temperature=0.0)),
        "sampled": lambda: _ours(model, cache, prompt, SamplingParams(seed=1)),
        "all samplers": lambda: _ours(
            model, cache, prompt, SamplingParams(seed=1, repeat_penalty=1.1, logit_bias={5: -1.0})
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()  # warm up
    for turn in range(blocks):
        names = list(ways)
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            times[name].append(ways[name]())
        tick()
    model.release(cache)
    bare = times["bare loop"]
    return [
        Overhead(
            name,
            statistics.median(values),
            statistics.median(v - b for v, b in zip(values, bare, strict=True)),
        )
        for name, values in times.items()
    ]


def _bare(model: LlamaModel, cache: LlamaCache, prompt: list[int]) -> float:
    cache.truncate(0)
    for token in prompt[:-1]:
        model.bare_greedy(cache, token)
    token = model.bare_greedy(cache, prompt[-1])
    start = perf_counter()
    for _ in range(BLOCK):
        token = model.bare_greedy(cache, token)
    return (perf_counter() - start) / BLOCK


def _ours(model: LlamaModel, cache: LlamaCache, prompt: list[int], params: SamplingParams) -> float:
    request = Request(prompt, Chain(params, model.n_vocab), Exact(), max_tokens=BLOCK + 1)
    generation = Generation(request, cache, FixedLength([], 0), model.tokenizer)
    moments = [perf_counter() for event in drive(generation.run()) if isinstance(event, Round)]
    return (moments[-1] - moments[0]) / (len(moments) - 1)
