"""Acceptance rules: does the target keep a draft token, and what replaces a refused one?

p is the target's distribution after the sampler chain, q the distribution the draft token
was really drawn from (all mass on it when the draft did not sample). Uniform numbers come
from one stream per generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specchat.errors import BadRequestError

from .sampling import Dist


@dataclass(frozen=True, slots=True)
class Verdict:
    """`token` is what comes out; `acceptance` the chance the draft token had."""

    accepted: bool
    token: int
    acceptance: float


class Rule(Protocol):
    """`lossless`: the output follows p exactly, whatever the draft."""

    name: str
    lossless: bool

    def judge(self, p: Dist, token: int, q: Dist, rng: np.random.Generator) -> Verdict: ...

    def expected(self, p: Dist, q: Dist) -> float:
        """The chance that a token drawn from q is accepted, before it is drawn."""


class Exact:
    """Rejection sampling: keep with probability min(1, p/q), else draw from
    norm(max(0, p − q)). Lossless: Leviathan et al. 2022 (arXiv:2211.17192), theorem 1;
    Chen et al. 2023 (arXiv:2302.01318). At temperature 0 it is equality of argmax.
    """

    name = "exact"
    lossless = True

    def judge(self, p: Dist, token: int, q: Dist, rng: np.random.Generator) -> Verdict:
        chance = min(1.0, p.p(token) / q.p(token))
        if chance >= 1.0 or (chance > 0.0 and rng.random() < chance):
            return Verdict(True, token, chance)
        return Verdict(False, p.minus(q).draw(rng.random()), chance)

    def expected(self, p: Dist, q: Dist) -> float:
        """Σ min(p, q): Leviathan et al. 2022, corollary 3.6."""
        return float(np.minimum(p.at(q.ids), q.probs).sum())


class Match:
    """Sample and match: draw from p; keep the draft token if it is the same. Lossless, and
    the same seed gives the same answer with any draft (one uniform number a token), but
    acceptance is Σ p·q, never above rejection sampling's Σ min(p, q).
    """

    name = "match"
    lossless = True

    def judge(self, p: Dist, token: int, q: Dist, rng: np.random.Generator) -> Verdict:
        drawn = p.draw(rng.random())
        return Verdict(drawn == token, drawn, p.p(token))

    def expected(self, p: Dist, q: Dist) -> float:
        return float(p.at(q.ids) @ q.probs)


class Typical:
    """Keep while p(token) ≥ τ · max p; else draw from p. LOSSY: it prefers the draft's
    choices among good tokens, so answers do not follow the target's distribution.
    """

    name = "typical"
    lossless = False

    def __init__(self, tau: float = 0.5) -> None:
        if not 0.0 < tau <= 1.0:
            raise BadRequestError(f"tau must be above 0 and at most 1, not {tau}.", "tau")
        self.tau = tau

    def judge(self, p: Dist, token: int, q: Dist, rng: np.random.Generator) -> Verdict:
        if p.p(token) >= self.tau * p.max:
            return Verdict(True, token, 1.0)
        return Verdict(False, p.draw(rng.random()), 0.0)

    def expected(self, p: Dist, q: Dist) -> float:
        return float(q.probs[p.at(q.ids) >= self.tau * p.max].sum())


RULES = ("exact", "match", "typical")


def make_rule(name: str, tau: float = 0.5) -> Rule:
    """The rule called `name`. Raises BadRequestError for an unknown name."""
    if name == "exact":
        return Exact()
    if name == "match":
        return Match()
    if name == "typical":
        return Typical(tau)
    raise BadRequestError(f"There is no rule {name!r}; choose from {', '.join(RULES)}.", "rule")
