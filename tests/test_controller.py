"""The controller against oracles, with synthetic models and a virtual clock.

Every model call advances the clock by its cost, so rates are exact and nothing is timed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from specchat.engine import batch, costs, loop
from specchat.engine.acceptance import CENTRES, Acceptance
from specchat.engine.batch import drive
from specchat.engine.controller import Controller, restore
from specchat.engine.costs import Costs, Curve, PairCosts, break_even, rates, tokens_per_call
from specchat.engine.drafters import LookupDrafter, ModelDrafter, Step
from specchat.engine.events import Round
from specchat.engine.loop import Generation, Request
from specchat.engine.model import Evaluate, Logits
from specchat.engine.policy import FixedLength, Policy
from specchat.engine.rules import Exact
from specchat.engine.sampling import Chain
from specchat.engine.stopping import best_copy, best_strategy
from specchat.engine.synthetic import (
    NEUTRAL,
    Alphabet,
    N,
    TableCache,
    TableModel,
    align,
    random_table,
)

LONGEST = 8
# Relative cost of a target call with 1, 2, … tokens: measured shapes of two types on a
# two-core CPU, and a flat curve as on a GPU.
CURVES = {
    "bf16": (1, 1.56, 1.90, 2.05, 2.09, 2.24, 2.37, 2.49, 2.65),
    "q4_1": (1, 1.80, 2.22, 2.62, 3.40, 3.84, 4.13, 4.42, 4.88),
    "flat": (1, 1.02, 1.04, 1.06, 1.08, 1.10, 1.12, 1.14, 1.16),
}


class Clock:
    """Time that passes only when a model says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (loop, batch, costs):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)


class TimedModel(TableModel):
    """A table whose calls take as long as `curve` says, by tokens in the call."""

    def __init__(self, table: np.ndarray, clock: Clock, curve: Sequence[float]) -> None:
        super().__init__(table)
        self._clock, self._curve = clock, curve

    def become(self, table: np.ndarray) -> None:
        """From now on another table: the text changes its nature."""
        TableModel.__init__(self, table)

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Logits]:
        n = sum(len(request.tokens) for request in requests)
        if any(request.outputs for request in requests):
            last = len(self._curve)
            slope = self._curve[-1] - self._curve[-2] if last > 1 else self._curve[0]
            self._clock.now += self._curve[min(n, last) - 1] + max(0, n - last) * slope
        return super().evaluate(requests)


@dataclass
class World:
    clock: Clock
    target: TimedModel
    draft: TimedModel
    costs: PairCosts

    def run(self, policy: Policy, tokens: int, seed: int = 1) -> Iterator[Round]:
        request = Request([0], Chain(replace(NEUTRAL, seed=seed), N), Exact(), max_tokens=tokens)
        generation = Generation(request, TableCache(self.target), policy, Alphabet())
        observe = lambda model, requests, seconds: self.costs.observe_call(  # noqa: E731
            self.costs.target if model is self.target else self.costs.draft, requests, seconds
        )
        for event in drive(generation.run(), observe):
            if isinstance(event, Round):
                yield event

    def drafter(self) -> ModelDrafter:
        return ModelDrafter(TableCache(self.draft), N)

    def controller(self, memory: dict[str, Acceptance] | None = None) -> Controller:
        memory = {} if memory is None else memory
        return Controller([self.drafter()], self.costs, memory, LONGEST)

    def rate(self, policy: Policy, tokens: int, seed: int = 1) -> float:
        """Tokens per unit of time, over one answer."""
        start = self.clock.now
        done = sum(r.emitted for r in self.run(policy, tokens, seed))
        return done / (self.clock.now - start)


def world(
    monkeypatch: pytest.MonkeyPatch, draft: np.ndarray, curve: str, draft_step: float
) -> World:
    clock = Clock(monkeypatch)
    shape = CURVES[curve]
    target = TimedModel(TARGET, clock, shape)
    points = {0: {n: [float(t)] for n, t in enumerate(shape, 1)}}
    pair = PairCosts(Curve(points), Curve({0: {1: [draft_step]}}), overhead=0.0)
    return World(clock, target, TimedModel(draft, clock, (draft_step,)), pair)


TARGET = random_table(3)
HOSTILE = np.roll(np.eye(N)[TARGET.argmax(axis=1)], 1, axis=1) * 0.9 + 0.01


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("alignment", [0.0, 0.6, 0.9])
def test_stationary_acceptance_is_within_three_percent_of_the_best_fixed_length(
    monkeypatch: pytest.MonkeyPatch, curve: str, alignment: float
) -> None:
    w = world(monkeypatch, align(TARGET, alignment), curve, 0.12)
    fixed = {
        k: w.rate(FixedLength([w.drafter()], k, costs=PairCosts()), 3000)
        for k in range(LONGEST + 1)
    }
    auto = w.rate(w.controller(), 3000)
    assert auto >= 0.97 * max(fixed.values()), (auto, fixed)


@pytest.mark.parametrize("curve", CURVES)
def test_a_hostile_draft_costs_at_most_three_percent_of_plain(
    monkeypatch: pytest.MonkeyPatch, curve: str
) -> None:
    w = world(monkeypatch, HOSTILE, curve, 0.12)
    plain = w.rate(FixedLength([], 0, costs=PairCosts()), 600)
    memory: dict[str, Acceptance] = {}
    rates_ = [w.rate(w.controller(memory), 300, seed) for seed in range(3)]
    assert min(rates_) >= 0.97 * plain


def test_it_says_why_it_stays_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(monkeypatch, HOSTILE, "q4_1", 0.12)
    rounds = list(w.run(w.controller(), 200))
    assert rounds[-1].draft_length == 0
    assert "break-even acceptance 0." in rounds[-3].reason
    assert "measured 0." in rounds[-3].reason


@pytest.mark.parametrize(("before", "after"), [(HOSTILE, TARGET), (TARGET, HOSTILE)])
@pytest.mark.parametrize("curve", ["bf16", "flat"])
def test_it_recovers_within_twenty_rounds_of_a_change(
    monkeypatch: pytest.MonkeyPatch, before: np.ndarray, after: np.ndarray, curve: str
) -> None:
    """After 20 rounds the rate of the next 60 is what a controller that always lived in the
    new world reaches, within 10 % (the chance variation of 60 rounds is about 3 %).
    """
    w = world(monkeypatch, before, curve, 0.02)
    rounds = w.run(w.controller(), 5000)
    for _ in range(200):
        next(rounds)
    w.draft.become(after)
    for _ in range(20):
        next(rounds)
    start = w.clock.now
    emitted = sum(next(rounds).emitted for _ in range(60))
    recovered = emitted / (w.clock.now - start)
    settled = world(monkeypatch, after, curve, 0.02)
    reference = settled.rate(settled.controller(), 3000)
    assert recovered >= 0.9 * reference


def test_the_baseline_is_checked_by_plain_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(monkeypatch, TARGET, "flat", 0.01)
    lengths = [r.draft_length for r in w.run(w.controller(), 3000)]
    plain = lengths.count(0)
    assert 0.005 * len(lengths) < plain < 0.05 * len(lengths)


def test_the_curve_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as slow a machine is noticed, also for token counts not seen since."""
    curve = Curve({0: {1: [1.0], 4: [2.0], 8: [3.0]}})
    for _ in range(40):
        curve.observe(4, 0, 4.0)
    assert curve.seconds(4, 0) == pytest.approx(4.0, rel=0.05)
    assert curve.seconds(8, 0) == pytest.approx(6.0, rel=0.1)
    curve.observe(4, 0, 400.0)  # one spike of a shared machine changes next to nothing
    assert curve.seconds(4, 0) == pytest.approx(4.0, rel=0.1)


def test_a_busy_spell_does_not_make_drafts_look_dear() -> None:
    """All drafts fell into a busy spell, all plain calls into the quiet after it."""
    curve = Curve({0: {1: [1.0], 5: [2.0], 9: [2.5]}})
    for n in (5, 9, 5, 5, 9, 5, 9, 9, 5):
        curve.observe(n, 0, 1.6 * {5: 2.0, 9: 2.5}[n])
    for _ in range(12):
        curve.observe(1, 0, 1.0)
    for n, relative in ((5, 2.0), (9, 2.5)):
        assert curve.seconds(n, 0) / curve.seconds(1, 0) == pytest.approx(relative, rel=0.12)


def test_a_count_that_stays_dear_is_learned() -> None:
    """Measured as cheap by mistake, and seen among others."""
    curve = Curve({0: {1: [1.0], 5: [1.5], 9: [2.5]}})
    for _ in range(12):
        curve.observe(5, 0, 2.0)
        curve.observe(1, 0, 1.0)
    assert curve.seconds(5, 0) / curve.seconds(1, 0) == pytest.approx(2.0, rel=0.05)


def test_the_curve_at_depth_is_used_at_depth() -> None:
    curve = Curve({0: {1: [1.0], 5: [2.0]}, 4096: {1: [2.0], 5: [6.0]}})
    assert curve.seconds(5, 4096) == pytest.approx(6.0)
    assert curve.seconds(1, 2048) == pytest.approx(1.5)
    assert curve.seconds(5, 9000) == pytest.approx(6.0)
    assert curve.seconds(7, 0) == pytest.approx(2.5)  # the last slope goes on


def test_tokens_per_call_formula() -> None:
    assert tokens_per_call(np.array([0.5, 0.5])) == pytest.approx([1.0, 1.5, 1.75])
    verify = np.array([1.0, 1.5, 1.75])
    assert rates(np.array([1.0, 1.0]), verify, 0.25, 0.0) == pytest.approx([1, 2 / 1.75, 3 / 2.25])


def test_break_even_is_where_both_are_equally_fast() -> None:
    verify = np.array([1.0, 1.5, 1.8])
    for length in (1, 2):
        a = break_even(length, verify, 0.1, 0.05)
        assert a is not None
        speed = rates(np.full(2, a), verify, 0.1, 0.05)
        assert speed[length] == pytest.approx(speed[0], rel=1e-6)
    assert break_even(1, np.array([1.0, 2.5]), 0.1, 0.0) is None


def test_stopping_beats_every_fixed_length_on_varying_confidence() -> None:
    """Half of the tokens are sure, half are hopeless: stop at the hopeless ones."""
    chances = np.array([0.05] * 6 + [0.98] * 6)
    costs_ = Costs(np.array(CURVES["bf16"], float), 0.1, 0.0)
    strategy = best_strategy(costs_, chances, chances)
    fixed = rates(np.full(8, chances.mean()), costs_.verify, 0.1, 0.0)
    assert strategy.rate > fixed.max() * 1.1
    assert strategy.decide(0, 0.05) is Step.STOP
    assert strategy.decide(0, 0.98) is Step.MORE


def test_a_free_copy_is_taken_as_far_as_it_pays() -> None:
    costs_ = Costs(np.array(CURVES["q4_1"], float), 0.1, 0.0)
    assert best_copy(costs_, np.full(8, 0.1), 1.0) == (0, 0.0)
    length, gain = best_copy(costs_, np.full(8, 0.99), 1.0)
    assert length == 8
    assert gain > 1.0


def test_lookup_is_chosen_where_the_text_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = np.roll(np.eye(N), 1, axis=1) * 0.98 + 0.002
    w = world(monkeypatch, HOSTILE, "bf16", 0.12)
    w.target.become(cycle / cycle.sum(axis=1, keepdims=True))
    controller = Controller([LookupDrafter(), w.drafter()], w.costs, {}, LONGEST)
    rounds = list(w.run(controller, 400))
    copied = [r for r in rounds if r.drafter == "lookup"]
    assert sum(r.emitted for r in copied) > 0.8 * 400
    assert all("lookup matched" in r.reason for r in copied)


def test_acceptance_is_calibrated_and_kept() -> None:
    estimate = Acceptance(lambda c: c, LONGEST)
    for _ in range(200):  # an overconfident draft
        estimate.observe([0.9, 0.9], [0.4, 0.3])
    assert estimate.chance(0.9) == pytest.approx(0.35, abs=0.05)
    state = json.loads(json.dumps({"draft": estimate.state()}))
    memory: dict[str, Acceptance] = {}
    restore(memory, state, LONGEST)
    assert memory["draft"].chance(0.9) == pytest.approx(0.4, abs=0.1)
    bad = Acceptance(lambda c: c, LONGEST)
    bad.restore({"count": [float("nan")] * len(CENTRES), "kept": [0.0] * len(CENTRES)})
    assert bad.chance(0.5) == Acceptance(lambda c: c, LONGEST).chance(0.5)


def test_a_bad_measurement_does_not_outlive_the_run() -> None:
    curve = Curve({0: {1: [1.0], 4: [9.0]}})
    for _ in range(20):
        curve.observe(1, 0, 1.0)
        curve.observe(4, 0, 2.0)
    curve.absorb()
    fresh = Curve(curve.points)
    for _ in range(3):  # the median wins once it has been contradicted often enough
        for _ in range(20):
            fresh.observe(1, 0, 1.0)
            fresh.observe(4, 0, 2.0)
        fresh.absorb()
    assert Curve(fresh.points).seconds(4, 0) == pytest.approx(2.0, rel=0.3)
