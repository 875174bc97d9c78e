"""Interleaved runs of the same prompts under different settings, and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specchat.bench.prompts import PROMPTS
from specchat.engine.engine import Engine, Settings
from specchat.engine.messages import Message
from specchat.engine.sampling import SamplingParams
from specchat.errors import BadRequestError

PLAIN = "plain"
ARMS: dict[str, tuple[int | None, str]] = {  # draft length (None: the controller), drafters
    PLAIN: (0, "none"),
    "2": (2, "draft"),
    "4": (4, "draft"),
    "6": (6, "draft"),
    "8": (8, "draft"),
    "auto": (None, "draft"),
    "lookup": (None, "lookup"),
    "draft+lookup": (None, "both"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One answer. Rates are tokens per second of decoding: the prompt does not count."""

    kind: str
    prompt: int
    repetition: int
    temperature: float
    arm: str
    tokens: int
    tokens_per_second: float
    tokens_per_call: float
    acceptance: float | None
    reason: str  # the controller's last


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired ratios to plain, with a 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    pairs: int


def plan(
    kinds: Sequence[str], arms: Sequence[str], temperatures: Sequence[float], repeat: int
) -> list[tuple[int, float, str, int, str]]:
    """(repetition, temperature, kind, prompt, arm) in running order.

    All arms of a prompt follow each other, so that a pair to compare shares the moment; the
    order rotates, so that none always comes first.
    """
    for name, known, given in (("kind", PROMPTS, kinds), ("arm", ARMS, arms)):
        for value in given:
            if value not in known:
                raise BadRequestError(
                    f"There is no {name} {value!r}; choose from {', '.join(known)}."
                )
    order, turn = [], 0
    for repetition in range(repeat):
        for temperature in temperatures:
            for kind in kinds:
                for prompt in range(len(PROMPTS[kind])):
                    first = turn % len(arms)
                    turn += 1
                    order += [
                        (repetition, temperature, kind, prompt, arm)
                        for arm in (*arms[first:], *arms[:first])
                    ]
    return order


def run(
    engine: Engine,
    order: Sequence[tuple[int, float, str, int, str]],
    tokens: int,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[Run]:
    """Answer in `order`, at most `tokens` each. The controller starts knowing nothing of
    acceptance and learns over the run, as it would in use.
    """
    engine.calibration.memory.clear()
    for repetition, temperature, kind, prompt, arm in order:
        length, drafter = ARMS[arm]
        settings = Settings(
            sampling=SamplingParams(temperature=temperature, seed=1000 * repetition + prompt),
            draft_length=length,
            drafter=drafter,
            max_tokens=tokens,
        )
        yield replace(
            answer(engine, PROMPTS[kind][prompt], settings),
            kind=kind,
            prompt=prompt,
            repetition=repetition,
            temperature=temperature,
            arm=arm,
        )
        advance()


def answer(engine: Engine, prompt: str, settings: Settings) -> Run:
    """One answer's figures."""
    events = engine.chat([Message("user", prompt)], settings)
    stats = engine.stats()
    reason = ""
    for event in events:
        stats.add(event)
        if stats.last is not None and stats.last.reason != "no room for a draft":
            reason = stats.last.reason
    return Run(
        "", 0, 0, 0.0, "", stats.tokens, stats.tokens_per_second or 0.0,
        stats.tokens_per_call or 0.0, stats.acceptance, reason,
    )  # fmt: skip


def ratio(runs: Sequence[Run], arm: str, kind: str | None, temperature: float) -> Ratio | None:
    """How much faster `arm` is than plain, over the pairs of one kind (None: all)."""
    chosen = [r for r in runs if r.temperature == temperature and kind in (None, r.kind)]
    base = {(r.kind, r.prompt, r.repetition): r for r in chosen if r.arm == PLAIN}
    pairs = [
        r.tokens_per_second / base[key].tokens_per_second
        for r in chosen
        if r.arm == arm and (key := (r.kind, r.prompt, r.repetition)) in base
    ]
    return interval(pairs) if pairs else None


def interval(values: Sequence[float], seed: int = 1) -> Ratio:
    """Median and percentile bootstrap (Efron 1979), 2,000 resamples."""
    data = np.array(values)
    draws = np.random.default_rng(seed).choice(data, size=(2000, len(data)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(data)), float(low), float(high), len(data))


def mean(runs: Sequence[Run], arm: str, kind: str | None, temperature: float, what: str) -> float:
    """Mean of a field of `Run` where it is known; NaN where nowhere."""
    values = [
        getattr(r, what)
        for r in runs
        if r.arm == arm and r.temperature == temperature and kind in (None, r.kind)
    ]
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else float("nan")
