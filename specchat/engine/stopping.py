"""When to stop drafting: optimal stopping by dynamic programming.

A round earns tokens and costs seconds; the best long-run rate ρ is the one at which the
best way to run a round is worth just as much as its time: max E[tokens] − ρ·E[seconds] = 0
(renewal reward; the search for ρ is Dinkelbach's, 1967). Inside a round, a further draft
token is worth taking while its chance to be kept exceeds ρ times what it adds to the
verification, and another draft step is worth its cost while what it may bring is. This is
the stopping idea of SpecDec++ (arXiv:2405.19715) and AdaEDL (arXiv:2410.18351), with
measured costs in place of thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specchat.engine.costs import Costs
from specchat.engine.drafters import Step
from specchat.engine.sampling import Floats

_REACH = np.concatenate([[0.0], np.geomspace(0.03, 1.0, 15)])  # grid of survival chances
POINTS = 12  # quantiles that stand well enough for a distribution of acceptance chances


@dataclass(frozen=True, slots=True)
class Strategy:
    """What to do at each draft position for the best long-run rate.

    `rate` is that rate in tokens per second; `gain` what drafting is worth per round, in
    tokens, over not drafting at that rate (0 or less: do not draft).
    """

    rate: float
    gain: float
    added: Floats  # ρ · what position i adds to the verification, shape (K,)
    values: Floats  # worth of one more draft step by position and reach, shape (K + 1, grid)

    def decide(self, position: int, reach: float) -> Step:
        """`reach` is the chance that this token and all before it are accepted."""
        last = reach - float(self.added[position])
        more = last + float(np.interp(reach, _REACH, self.values[position + 1]))
        if max(last, more) <= 0.0:
            return Step.STOP
        return Step.MORE if more > last else Step.LAST


def best_strategy(costs: Costs, first: Floats, later: Floats) -> Strategy:
    """The best strategy, given equally likely acceptance chances of a draft token at the
    first position and at later ones (any shapes).
    """
    low = 1.0 / costs.plain
    strategy = _value(costs, first, later, low)
    above = strategy.gain  # worth of a round at the rate `low`
    if above <= 0.0:
        return strategy
    high = below = 0.0
    for _ in range(8):  # regula falsi, once a rate too high to reach is found
        share = above / (above - below) if high else 0.0
        rate = low + share * (high - low) if high else low + 0.5 * above / costs.plain
        strategy = _value(costs, first, later, rate)
        worth = 1.0 - rate * costs.plain + strategy.gain
        if abs(worth) < 0.005:
            break
        if worth > 0.0:
            low, above = rate, worth
        else:
            high, below = rate, worth
    return strategy


def _value(costs: Costs, first: Floats, later: Floats, rate: float) -> Strategy:
    """Backward induction over draft positions at a given ρ."""
    longest = len(costs.verify) - 1
    added = rate * np.diff(costs.verify)
    values = np.full((longest + 1, len(_REACH)), -np.inf)
    step = rate * costs.draft_step
    for position in range(longest - 1, -1, -1):
        chances = first if position == 0 else later
        reach = _REACH[:, None] * chances[None, :]
        last = reach - added[position]
        more = last + np.interp(reach, _REACH, values[position + 1])
        values[position] = np.maximum(0.0, np.maximum(last, more)).mean(axis=1) - step
    return Strategy(rate, float(values[0, -1]), added, values)


def best_copy(costs: Costs, chances: Floats, rate: float) -> tuple[int, float]:
    """The best draft length for tokens that cost nothing to draft and have known chances:
    (length, gain in tokens per round at `rate`); (0, 0.0) where none pays.
    """
    reach = np.cumsum(np.cumprod(chances[: len(costs.verify) - 1]))
    gains = reach - rate * (costs.verify[1 : len(reach) + 1] - costs.verify[0])
    best = int(gains.argmax()) if len(gains) else 0
    if not len(gains) or gains[best] <= 0.0:
        return 0, 0.0
    return best + 1, float(gains[best])
