"""Never slower: choose drafter and draft length by measured cost and learned acceptance.

Each round the choice with the highest expected tokens per second is taken, plain decoding
included; drafting stops as soon as the next token is not worth its cost. Every choice says
why.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specchat.engine.acceptance import Acceptance
from specchat.engine.costs import Costs, PairCosts, break_even, measure, rates
from specchat.engine.drafters import Drafter, LookupDrafter, ModelDrafter, Step
from specchat.engine.model import Cache, Evaluate, Logits
from specchat.engine.policy import Outcome, Plan
from specchat.engine.sampling import Floats
from specchat.engine.stopping import POINTS, Strategy, best_copy, best_strategy

_REFRESH = 8  # rounds between two solutions of the stopping problem
_PLAIN_EVERY = 64  # drafted rounds between two plain ones that check the baseline
_MARGIN = 0.01  # tokens a round must promise before drafting counts as paying
_CREDIT = 0.015  # tokens earned per plain round, to be spent on looking whether drafting pays
_FIRST_CREDIT = 0.5  # what an answer starts with
_CATCH_UP = 0.3  # of a draft step, for each token a draft's cache is behind


@dataclass(frozen=True, slots=True)
class Prediction:
    """The controller's reasoning: tokens per second by fixed draft length 0..K, with the
    measured acceptance (None: nothing judged yet) and what it needs to break even.
    """

    rates: tuple[float, ...]
    acceptance: float | None
    break_even: float | None
    best: float


class Controller:
    """A `policy.Policy` for one conversation; costs and acceptance outlive it."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: PairCosts,
        memory: dict[str, Acceptance],
        longest: int = 16,
        refusal: str = "",
    ) -> None:
        """`memory` keeps acceptance estimates by drafter name, and is updated in place.
        `refusal` says why there is no drafter, where there is none.
        """
        self.drafters = drafters
        self.costs = costs
        self.longest = longest
        self._memory = memory
        self._refusal = refusal or "no drafter"
        for drafter in drafters:
            if drafter.name not in memory:
                copies = isinstance(drafter, LookupDrafter)
                memory[drafter.name] = Acceptance(_copy_prior if copies else _model_prior, longest)
        self._round = 0
        self._at: Costs | None = None
        self._strategy: Strategy | None = None
        self._due = 0  # the round at which both are made anew
        self._since_plain = 0
        self._credit = _FIRST_CREDIT
        self._lag = 0  # tokens the draft's cache is behind
        self._reach = 1.0
        self._looking = False  # drafting although it does not seem to pay
        self._prefill = 0.0  # seconds
        self._plain_reason = self._draft_reason = ""

    # -- policy ---------------------------------------------------------------------

    def begin(self, prompt: Sequence[int]) -> None:
        self._prefill = 0.0
        for drafter in self.drafters:
            self._memory[drafter.name].relax()
        self._refresh(len(prompt))

    def wants(self, drafter: Drafter) -> bool:
        """A draft that is not worth using need not read the prompt."""
        return isinstance(drafter, LookupDrafter) or self._pays()

    def prefilled(self, tokens: int, depth: int, seconds: float) -> None:
        self._prefill += seconds

    def calibrate(self, target: Cache) -> Generator[Evaluate, Logits, None]:
        """After a long prefill, measure the curve at this depth if none near is known; it
        may take a twentieth of the time the prompt took.
        """
        depth = len(target.tokens)
        known = any(2 * depth <= 3 * d <= 4.5 * depth for d in self.costs.target.points)
        budget, self._prefill = 0.05 * self._prefill, 0.0
        if known or depth < 256 or budget < 4 * self.costs.target.seconds(1, depth):
            return
        if not self.drafters or self.costs.busy > 1:  # no use, or neighbours in the call
            return
        yield from measure(target, self.costs.target, budget)
        self._due = 0

    def plan(self, context: Sequence[int], room: int) -> Plan:
        self._round += 1
        if self._round >= self._due:
            self._refresh(len(context))
        assert self._at is not None
        longest = min(self.longest, room)
        if longest < 1:
            return Plan(None, 0, "no room for a draft")
        if not self.drafters:
            return Plan(None, 0, f"draft length 0: {self._refusal}")
        if self._since_plain >= _PLAIN_EVERY:
            return Plan(None, 0, "plain round to check the baseline")
        return self._copy(context, longest) or self._draft(context, longest) or self._plain(context)

    def observe(self, outcome: Outcome) -> None:
        draft, drafter = outcome.draft, outcome.plan.drafter
        self.costs.observe_round(outcome.round)
        self._since_plain = self._since_plain + 1 if outcome.round.draft_length else 0
        if drafter is not None and draft.tokens:
            self._memory[drafter.name].observe(draft.confidences, outcome.acceptances)
        if draft.calls:
            if self._looking:
                self._credit -= self._loss()
            self._lag = 0
        else:
            self._credit = min(self._credit + _CREDIT, _FIRST_CREDIT)
            self._lag += outcome.round.emitted

    # -- choice ---------------------------------------------------------------------

    def _refresh(self, depth: int) -> None:
        """Solve the stopping problem anew at this depth with what was learned."""
        self._at = self.costs.at(depth, self.longest)
        model = self._model()
        if model is not None and self.costs.draft:
            acceptance = self._memory[model.name]
            self._strategy = best_strategy(
                self._at, acceptance.typical(0, POINTS), acceptance.typical(1, POINTS)
            )
        else:
            self._strategy = None
        self._plain_reason = self._why_plain()
        self._draft_reason = self._why_draft() if self._pays() else ""
        self._due = self._round + (_REFRESH if self._round > _REFRESH else 2)

    def _model(self) -> Drafter | None:
        return next((d for d in self.drafters if not isinstance(d, LookupDrafter)), None)

    def _copiers(self) -> list[LookupDrafter]:
        return [d for d in self.drafters if isinstance(d, LookupDrafter)]

    def _pays(self) -> bool:
        return self._strategy is not None and self._strategy.gain > _MARGIN

    def _loss(self) -> float:
        """Tokens that one look at the draft costs, catching up included."""
        if self._strategy is None or self._at is None:
            return float("inf")
        return self.rate * self._at.draft_step * (1 + _CATCH_UP * max(0, self._lag - 1))

    @property
    def rate(self) -> float:
        """The best predicted tokens per second."""
        assert self._at is not None
        return self._strategy.rate if self._strategy else 1.0 / self._at.plain

    def _copy(self, context: Sequence[int], longest: int) -> Plan | None:
        """The best copied draft, if it is worth more than the draft model's."""
        assert self._at is not None
        best, most = None, self._strategy.gain if self._strategy else 0.0
        for copier in self._copiers():
            if not (match := copier.strength(context)):
                continue
            chances = _copy_chances(self._memory[copier.name], copier, match, longest)
            length, gain = best_copy(self._at, chances, self.rate)
            if length >= 1 and gain > most:
                why = f"matched {match} tokens, {chances[0]:.0%} sure: copying {length}"
                best, most = Plan(copier, length, f"{copier.name} {why}"), gain
        return best

    def _draft(self, context: Sequence[int], longest: int) -> Plan | None:
        """The draft model's turn: for real if it pays, in the shadow if a look is due."""
        model = self._model()
        if model is None or model.strength(context) < 1:
            return None
        self._reach = 1.0
        self._looking = not self._pays()
        if not self._looking:
            return Plan(model, longest, self._draft_reason, self._worth)
        if self._loss() > self._credit:
            return None
        return Plan(model, 1, f"{self._plain_reason}; looking again", self._look, shadow=True)

    def _plain(self, context: Sequence[int]) -> Plan:
        """No draft; a match that is not worth copying is judged in the shadow, for nothing."""
        for copier in self._copiers():
            if copier.strength(context):
                return Plan(copier, 1, self._plain_reason, shadow=True)
        return Plan(None, 0, self._plain_reason)

    def _worth(self, position: int, confidence: float) -> Step:
        """Whether the next token of the draft model should go to the target."""
        assert self._strategy is not None
        model = self._model()
        assert model is not None
        acceptance = self._memory[model.name]
        acceptance.saw(position, confidence)
        self._reach *= acceptance.chance(confidence)
        return self._strategy.decide(position, self._reach)

    def _look(self, position: int, confidence: float) -> Step:
        """In the shadow one token is always taken: there is no verification to save."""
        self._worth(position, confidence)
        return Step.LAST

    # -- reasons --------------------------------------------------------------------

    def _why_draft(self) -> str:
        assert self._strategy is not None
        assert self._at is not None
        return (
            f"drafting while it pays: {self._strategy.rate * self._at.plain:.2f}x plain "
            f"predicted, acceptance {self._measured()}"
        )

    def _why_plain(self) -> str:
        assert self._at is not None
        if self._model() is None:
            return "draft length 0: no match worth copying"
        needed = break_even(1, self._at.verify, self._at.draft_step, self._at.overhead)
        limit = f"break-even acceptance {needed:.2f}" if needed else "no acceptance breaks even"
        return f"draft length 0: {limit}, measured {self._measured()}"

    def _measured(self) -> str:
        model = self._model()
        mean = self._memory[model.name].mean if model else None
        return "none yet" if mean is None else f"{mean:.2f}"

    def prediction(self, depth: int) -> Prediction:
        """Everything the choice at `depth` rests on."""
        at = self.costs.at(depth, self.longest)
        model = self._model()
        acceptance = self._memory[model.name] if model else None
        by_position = acceptance.by_position() if acceptance else np.zeros(0)
        by_length = rates(by_position, at.verify, at.draft_step, at.overhead)
        return Prediction(
            rates=tuple(float(r) for r in by_length),
            acceptance=acceptance.mean if acceptance else None,
            break_even=break_even(1, at.verify, at.draft_step, at.overhead),
            best=self.rate if self._at else float(by_length.max()),
        )


def _copy_chances(
    acceptance: Acceptance, lookup: LookupDrafter, match: int, longest: int
) -> Floats:
    """Chances of copied tokens: every accepted one makes the match one longer."""
    lengths = np.minimum(match + np.arange(longest), lookup.longest)
    return np.array([acceptance.chance(n / lookup.longest) for n in lengths])


def _model_prior(confidence: float) -> float:
    """A draft's confidence, doubted where high and trusted where low: where both models
    sample, an unsure draft may still agree with an unsure target.
    """
    return 0.2 + 0.75 * confidence


def _copy_prior(confidence: float) -> float:
    """Longer matches go on more often."""
    return 0.15 + 0.8 * confidence


def restore(memory: dict[str, Acceptance], state: Mapping[str, Any], longest: int) -> None:
    """Fill `memory` with what an earlier conversation learned."""
    for name, saved in state.items():
        prior = _model_prior if name == ModelDrafter.name else _copy_prior
        memory[name] = Acceptance(prior, longest)
        memory[name].restore(saved)
