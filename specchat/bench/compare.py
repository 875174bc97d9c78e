"""Our engine against any OpenAI-compatible server: same prompts, interleaved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import httpx

from specchat.bench.prompts import PROMPTS
from specchat.bench.runner import answer
from specchat.engine.engine import Engine, Settings
from specchat.engine.sampling import SamplingParams
from specchat.errors import EndpointError


@dataclass(frozen=True, slots=True)
class Pair:
    """Decoding speed on one prompt in tokens per second: ours, and the other server's."""

    kind: str
    prompt: int
    repetition: int
    temperature: float
    ours: float
    theirs: float


def run(
    engine: Engine,
    address: str,
    kinds: tuple[str, ...],
    temperatures: tuple[float, ...],
    tokens: int,
    repeat: int,
    tick: Callable[[], None],
) -> Iterator[Pair]:
    """Every prompt on both, one right after the other, who goes first alternating.

    Raises EndpointError.
    """
    turn = 0
    for repetition in range(repeat):
        for temperature in temperatures:
            for kind in kinds:
                for prompt, text in enumerate(PROMPTS[kind]):
                    params = SamplingParams(temperature=temperature, seed=repetition)
                    settings = Settings(sampling=params, max_tokens=tokens)
                    speeds: dict[str, float] = {}
                    for who in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
                        if who == "ours":
                            speeds[who] = answer(engine, text, settings).tokens_per_second
                        else:
                            speeds[who] = _ask(address, text, params, tokens)
                    turn += 1
                    tick()
                    yield Pair(kind, prompt, repetition, temperature, **speeds)


def _ask(address: str, text: str, params: SamplingParams, tokens: int) -> float:
    """Decoding speed of one streamed answer: the server's own timings where it sends them
    (llama-server does), else tokens over the time from the first to the last chunk.
    """
    body = {
        "messages": [{"role": "user", "content": text}],
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "seed": params.seed,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": True,
    }
    first = last = 0.0
    count = 0
    try:
        url = f"{address.rstrip('/')}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=600) as response:
            if response.status_code != 200:
                response.read()
                text = " ".join(response.text.split())[:200]  # it may be a whole web page
                raise EndpointError(f"{address} answered {response.status_code}: {text}")
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                timings = chunk.get("timings")
                if timings and timings["predicted_n"] and timings["predicted_per_second"] > 0:
                    return float(timings["predicted_per_second"])
                if chunk.get("usage"):
                    count = int(chunk["usage"]["completion_tokens"])
                if chunk.get("choices"):
                    last = perf_counter()
                    first = first or last
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise EndpointError(f"Cannot use {address}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise EndpointError(f"{address} does not stream as an OpenAI server does.") from None
    if count < 2 or last <= first:
        raise EndpointError(f"{address} sent neither timings nor a usage count.")
    return (count - 1) / (last - first)
