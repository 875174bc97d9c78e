"""The simulation's table on a real pair: draft length against calls and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.bench.prompts import PROMPTS
from specchat.engine.engine import Engine, Settings
from specchat.engine.messages import Message
from specchat.engine.sampling import SamplingParams

LENGTHS = (0, 2, 4, 6)


@dataclass(frozen=True, slots=True)
class Line:
    """Sums over one prompt of each kind at one draft length. Seconds of decoding."""

    draft_length: int
    tokens: int
    target_calls: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens_per_call(self) -> float:
        return self.tokens / self.target_calls

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def run(
    engine: Engine, temperature: float, tokens: int, tick: Callable[[], None]
) -> Sequence[Line]:
    """All draft lengths on every prompt, interleaved by prompt."""
    sums: dict[int, list[float]] = {k: [0, 0, 0, 0, 0.0] for k in LENGTHS}
    for prompts in PROMPTS.values():
        for k in LENGTHS:
            settings = Settings(
                sampling=SamplingParams(temperature=temperature, seed=1),
                draft_length=k,
                drafter="draft",
                max_tokens=tokens,
            )
            stats = engine.stats()
            for event in engine.chat([Message("user", prompts[0])], settings):
                stats.add(event)
            found = (stats.tokens, stats.rounds, stats.drafted, stats.accepted, stats.seconds)
            sums[k] = [a + b for a, b in zip(sums[k], found, strict=True)]
            tick()
    return [Line(k, int(s[0]), int(s[1]), int(s[2]), int(s[3]), s[4]) for k, s in sums.items()]
