"""Synthetic models: probability tables over ten letters in place of networks.

The next letter depends on the last one only, so what the draft/verify loop does with a pair
of tables can be computed exactly (`predict`) and compared with what it did (`simulate`).
The loop, the drafter and the acceptance rules are those of real models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specchat.engine.batch import drive
from specchat.engine.drafters import ModelDrafter
from specchat.engine.events import Event
from specchat.engine.loop import Generation, Request
from specchat.engine.model import Evaluate, Logits
from specchat.engine.policy import FixedLength
from specchat.engine.rules import Exact, Match, Rule, Typical
from specchat.engine.sampling import Chain, Floats, SamplingParams
from specchat.errors import BadRequestError

LETTERS = "abcdefghij"
N = len(LETTERS)
Table = Floats  # shape (N, N): row s is the distribution of the letter after letter s

# The chain that leaves a table's probabilities as they are.
NEUTRAL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def random_table(seed: int, spread: float = 1.5) -> Table:
    """A random target: softmax of normal logits with standard deviation `spread`."""
    weights: Table = np.exp(np.random.default_rng(seed).normal(scale=spread, size=(N, N)))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def align(target: Table, alignment: float) -> Table:
    """A draft that proposes the target's best letter with chance `alignment` (0..1), else a
    sample of the target's distribution: a·onehot(argmax p) + (1 − a)·p in each row.
    """
    best: Table = np.eye(N)[target.argmax(axis=1)]
    return alignment * best + (1.0 - alignment) * target


class Alphabet:
    """The ten letters as a vocabulary; none of them ends an answer."""

    def piece(self, token: int) -> bytes:
        return LETTERS[token].encode()

    def is_eog(self, token: int) -> bool:
        return False


class TableModel:
    """A table as a `model.Model`: its logits are log-probabilities."""

    n_vocab = N
    n_ctx = 1_000_000
    prefill_chunk = max_batch = 1024

    def __init__(self, table: Table) -> None:
        with np.errstate(divide="ignore"):  # probability 0 is logit −inf
            self._logits = np.log(table).astype(np.float32)

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Logits]:
        rows: list[Logits] = []
        for request in requests:
            tokens = request.cache.tokens
            tokens += request.tokens
            last = tokens[len(tokens) - request.outputs :]
            rows.append(self._logits[np.array(last, np.intp)])
        return rows


class TableCache:
    """A `model.Cache` of a table: only the letters seen."""

    def __init__(self, model: TableModel) -> None:
        self.model = model
        self.tokens: list[int] = []

    def truncate(self, length: int) -> None:
        del self.tokens[length:]

    def mark(self) -> None:
        """Nothing to remember."""


def simulate(
    target: Table, draft: Table, rule: Rule, length: int, tokens: int, seed: int
) -> Iterator[Event]:
    """Generate `tokens` letters after an "a" with a fixed draft length (0: plain)."""
    drafter = ModelDrafter(TableCache(TableModel(draft)), N)
    request = Request([0], Chain(replace(NEUTRAL, seed=seed), N), rule, max_tokens=tokens)
    cache = TableCache(TableModel(target))
    return drive(Generation(request, cache, FixedLength([drafter], length), Alphabet()).run())


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the loop does with a pair of tables in the long run.

    `acceptances[s]` is the chance that a draft token after letter s is accepted;
    `accepted[s, n]` that a round starting after s accepts exactly n draft tokens (shape
    (N, length + 1)); `starts` the distribution of s over rounds; `output` that of the
    letters produced. `acceptance` is accepted over drafted tokens, None at length 0.
    """

    acceptances: Floats
    accepted: Floats
    starts: Floats
    output: Floats
    tokens_per_call: float
    acceptance: float | None


def predict(rule: Rule, target: Table, draft: Table, length: int) -> Prediction:
    """The exact long-run figures of the loop with neutral sampling.

    With M[s, t] the chance that t is drafted after s and accepted, a round that starts in
    s accepts at least i tokens with chance (Mⁱ 1)[s]. Averaged over the contexts in which
    rounds start this is E[tok/call] = 1 + Σᵢ Πⱼ≤ᵢ aⱼ (Leviathan et al. 2022, equation 1)
    for acceptances aⱼ that depend on the context and on what was accepted before.
    Raises BadRequestError for a rule without a formula.
    """
    kept, replaced = _transitions(rule, target, draft)
    reached = [np.eye(N)]  # reached[i][s, t]: i draft tokens accepted after s, the last is t
    for _ in range(length):
        reached.append(reached[-1] @ kept)
    survival = np.array([r.sum(axis=1) for r in reached]).T
    ends = sum((r @ replaced for r in reached[:-1]), reached[-1] @ target)
    starts = stationary(ends)
    produced = starts @ sum((r @ (kept + replaced) for r in reached[:-1]), reached[-1] @ target)
    per_call = float(starts @ survival.sum(axis=1))
    return Prediction(
        acceptances=kept.sum(axis=1),
        accepted=survival - np.column_stack([survival[:, 1:], np.zeros(N)]),
        starts=starts,
        output=produced / per_call,
        tokens_per_call=per_call,
        acceptance=(per_call - 1.0) / length if length else None,
    )


def stationary(chain: Table) -> Floats:
    """The distribution π with π = π·chain, for an irreducible chain."""
    system = np.vstack([chain.T - np.eye(len(chain)), np.ones(len(chain))])
    right = np.append(np.zeros(len(chain)), 1.0)
    solution: Floats = np.linalg.lstsq(system, right, rcond=None)[0]
    return solution


def _transitions(rule: Rule, p: Table, q: Table) -> tuple[Table, Table]:
    """Chances (of t after s) that t is drafted and accepted, and that t replaces a refused
    draft token: together each row sums to 1.
    """
    if isinstance(rule, Exact):
        return np.minimum(p, q), np.maximum(0.0, p - q)
    if isinstance(rule, Match):
        return p * q, p * (1.0 - q)
    if isinstance(rule, Typical):
        kept = q * (p >= rule.tau * p.max(axis=1, keepdims=True))
        return kept, (1.0 - kept.sum(axis=1, keepdims=True)) * p
    raise BadRequestError(f"There is no formula for the rule {rule.name!r}.", "rule")
