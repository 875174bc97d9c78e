"""Who drafts and how far, decided anew each round. Here: the fixed choice.

The cost-aware choice is in `controller.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specchat.engine.costs import PairCosts
from specchat.engine.drafters import Draft, Drafter, Judge, Step
from specchat.engine.events import Round
from specchat.engine.model import Cache, Evaluate, Logits


def _always(_drafted: int, _confidence: float) -> Step:
    return Step.MORE


@dataclass(frozen=True, slots=True)
class Plan:
    """One round's choice: `length` draft tokens from `drafter`, and why.

    In the shadow the draft is compared with the target but not verified: the round is a
    plain one, and what the draft would have been worth is learned for the price of a step.
    """

    drafter: Drafter | None
    length: int
    reason: str
    worth: Judge = _always
    shadow: bool = False


PLAIN = Plan(None, 0, "no draft")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round taught. `acceptances` are the chances of the judged draft tokens, in
    order: one for each accepted and one for the first refused. A shadow draft has one.
    """

    plan: Plan
    draft: Draft
    acceptances: Sequence[float]
    round: Round


class Policy(Protocol):
    """Chooses the drafter and the draft length of each round."""

    drafters: Sequence[Drafter]

    def begin(self, prompt: Sequence[int]) -> None:
        """A new generation starts."""

    def plan(self, context: Sequence[int], room: int) -> Plan:
        """The next round's choice; `room` is the longest draft that fits."""

    def wants(self, drafter: Drafter) -> bool:
        """Whether `drafter` should read the prompt now, not only when first asked."""

    def prefilled(self, tokens: int, depth: int, seconds: float) -> None:
        """The target evaluated `tokens` prompt tokens on top of `depth` in `seconds`."""

    def calibrate(self, target: Cache) -> Generator[Evaluate, Logits, None]:
        """Measure the target's calls at the prompt's depth, if that is worth the time."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished round."""


class FixedLength:
    """Always the same draft length; 0 is plain decoding.

    With several drafters, lookup goes first where it matches at least `min_match` tokens,
    for a long match is right more often than a small model.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        length: int,
        min_match: int = 4,
        costs: PairCosts | None = None,
    ) -> None:
        """`costs` learns from the rounds, so that the baseline stays measured."""
        self.drafters = drafters if length else ()
        self.costs = costs or PairCosts()
        self.length = length
        self.min_match = min_match

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def plan(self, context: Sequence[int], room: int) -> Plan:
        length = min(self.length, room)
        if length < 1:
            return PLAIN
        for drafter in self.drafters:
            strength = drafter.strength(context)
            enough = 1 if drafter is self.drafters[-1] else self.min_match
            if strength >= enough:
                return Plan(drafter, length, f"fixed draft length {self.length}")
        return PLAIN

    def wants(self, drafter: Drafter) -> bool:
        return True

    def prefilled(self, tokens: int, depth: int, seconds: float) -> None:
        pass

    def calibrate(self, target: Cache) -> Generator[Evaluate, Logits, None]:
        return
        yield

    def observe(self, outcome: Outcome) -> None:
        self.costs.observe_round(outcome.round)
