"""The sampler chain: from a row of logits to the distribution a token is drawn from.

One chain serves target and draft, plain and speculative decoding. Order and meaning of the
steps are llama.cpp's: logit bias, penalties, grammar, top-k, top-p, min-p, temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specchat.errors import BadRequestError, DecodeError, GrammarError

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]
Row = npt.NDArray[np.float32]  # one row of logits, shape (n_vocab,)

_POOL = 256  # best logits looked at before a grammar has to see the whole vocabulary
_GREEDY_POOL = 10  # candidates among which a greedy draft's confidence is measured


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What the user may set. Neutral values: top_k 0, top_p 1, min_p 0, repeat_penalty 1,
    the other penalties 0. `temperature` 0 is greedy (so is any below 1e-6). `penalty_last_n`
    is how many of the last context tokens (prompt and answer) the penalties look at. `seed`
    None is random.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raises BadRequestError naming the parameter that is out of range."""
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_k", 0, 10_000_000),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repeat_penalty", 0.01, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("frequency_penalty", -100.0, 100.0),
            ("penalty_last_n", 0, 10_000_000),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise BadRequestError(
                    f"{name} must be between {low} and {high}, not {value}.", name
                )
        for token, bias in self.logit_bias.items():
            if token < 0 or not bias <= 1e6:  # -inf forbids a token, nothing can force one
                raise BadRequestError(
                    f"logit_bias {token}: {bias} is not usable; ids start at 0 and a bias is at "
                    "most 1e6.",
                    "logit_bias",
                )


class Constraint(Protocol):
    """What a grammar offers the chain; see `llama.Grammar`."""

    def allowed(self, ids: Ids) -> npt.NDArray[np.bool_]: ...


@dataclass(frozen=True, slots=True)
class Dist:
    """A distribution over candidate tokens: `ids` (distinct) with `probs` summing to 1.

    Ids not listed have probability 0. Best first unless every token is a candidate.
    """

    ids: Ids
    probs: Floats

    def p(self, token: int) -> float:
        """Probability of `token`."""
        if len(self.ids) == 1:
            return float(self.probs[0]) if self.ids[0] == token else 0.0
        found = (self.ids == token).nonzero()[0]
        return float(self.probs[found[0]]) if found.size else 0.0

    def draw(self, u: float) -> int:
        """The token at quantile `u` in [0, 1): one uniform number, one token."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        cumulative = np.cumsum(self.probs)
        index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
        return int(self.ids[min(index, len(self.ids) - 1)])

    @property
    def best(self) -> int:
        return int(self.ids[self.probs.argmax()])

    @property
    def max(self) -> float:
        return float(self.probs.max())

    def at(self, ids: Ids) -> Floats:
        """Probabilities of several tokens: float64, same shape as `ids`."""
        order = np.argsort(self.ids)
        found = np.searchsorted(self.ids, ids, sorter=order)
        found = order[np.minimum(found, len(order) - 1)]
        return np.where(self.ids[found] == ids, self.probs[found], 0.0)

    def minus(self, other: Dist) -> Dist:
        """norm(max(0, self − other)): the residual of rejection sampling.

        Where nothing is left (the two are equal up to rounding) self is returned.
        """
        rest = np.maximum(0.0, self.probs - other.at(self.ids))
        total = rest.sum()
        if total <= 0.0:
            return self
        keep = np.flatnonzero(rest)
        return Dist(self.ids[keep], rest[keep] / total)


_CERTAIN = np.ones(1)


def one_hot(token: int) -> Dist:
    """All probability on `token`."""
    return Dist(np.array([token], np.int32), _CERTAIN)


def largest(row: Row, k: int) -> Ids:
    """Ids of the `k` largest logits, best first, ties by id: exact.

    The k-th largest of the maxima of disjoint blocks bounds the k-th largest element from
    below, so one vector comparison leaves few candidates to sort; measured 9 times faster
    than argpartition on 49,152 floats.
    """
    n = len(row)
    block = 128
    blocks = n // block
    if blocks < 2 * k:
        found = np.arange(n) if k >= n else np.argpartition(row, n - k)[n - k :]
        if k < n:  # argpartition breaks ties arbitrarily: take all equal to the k-th
            found = np.flatnonzero(row >= row[found].min())
    else:
        maxima = row[: blocks * block].reshape(blocks, block).max(axis=1)
        found = np.flatnonzero(row >= np.partition(maxima, blocks - k)[blocks - k])
    order = np.argsort(-row[found], kind="stable")[:k]
    return found[order].astype(np.int32)


class Chain:
    """The sampler chain of one generation. It keeps no state: the context is passed in."""

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        for token in params.logit_bias:
            if token >= n_vocab:
                raise BadRequestError(
                    f"logit_bias names token {token}; this model has {n_vocab}.", "logit_bias"
                )
        self.params = params
        self.greedy = params.temperature < 1e-6  # dividing by less would overflow
        self._bias_ids = np.fromiter(params.logit_bias, np.int32)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self._penalises = params.penalty_last_n > 0 and (
            params.repeat_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )

    def recent(self, context: Sequence[int]) -> list[int]:
        """A copy of the end of `context` that the penalties look at (empty if none do)."""
        return list(context[-self.params.penalty_last_n :]) if self._penalises else []

    def distribution(
        self, row: Row, context: Sequence[int], constraint: Constraint | None = None
    ) -> Dist:
        """The distribution of the token after `context` (ids), given its logits `row`.

        Raises DecodeError for logits that are not numbers, GrammarError when the grammar
        leaves no token at all.
        """
        row = self._adjusted(row, context)
        best = int(row.argmax())  # of any that is not a number, if there is one
        _check(row[best])
        if constraint is not None:
            return self._constrained(row, constraint)
        return one_hot(best) if self.greedy else self._truncated(row)

    def draft_distribution(
        self, row: Row, context: Sequence[int], constraint: Constraint | None = None
    ) -> tuple[Dist, float]:
        """The same for a draft, with its confidence: the probability of its best token.

        When greedy, confidence is measured among the best few candidates at temperature 1.
        """
        dist = self.distribution(row, context, constraint)
        if not self.greedy:
            return dist, dist.max
        top = row[largest(row, _GREEDY_POOL)].astype(np.float64)
        return dist, float(1.0 / np.exp(top - top[0]).sum())

    def _adjusted(self, row: Row, context: Sequence[int]) -> Row:
        """Logits after bias and penalties; the input row is not changed."""
        if not (self._penalises or len(self._bias_ids)):
            return row
        row = row.copy()
        row[self._bias_ids] += self._bias
        if self._penalises:
            p = self.params
            ids, counts = np.unique(context[-p.penalty_last_n :], return_counts=True)
            if ids.size:
                ids = ids.astype(np.int64)
                logits = row[ids]
                repeat = np.float32(p.repeat_penalty)
                logits = np.where(logits <= 0, logits * repeat, logits / repeat)
                row[ids] = logits - counts * p.frequency_penalty - p.presence_penalty
        return row

    def _truncated(self, row: Row) -> Dist:
        """top-k, top-p, min-p, temperature over a whole row."""
        p = self.params
        if p.top_k and p.top_k < len(row):
            ids = largest(row, p.top_k)
            return self._finish(ids, row[ids])
        best = float(row.max())
        if p.top_p >= 1.0 and p.min_p <= 0.0:
            weights = np.exp((row.astype(np.float64) - best) / p.temperature)
            return Dist(np.arange(len(row), dtype=np.int32), weights / weights.sum())
        total = float(np.exp(row - np.float32(best), dtype=np.float64).sum())
        floor = best + math.log(p.min_p) if p.min_p > 0.0 else -math.inf
        ids = np.flatnonzero(row >= floor).astype(np.int32)
        ids = ids[np.argsort(-row[ids], kind="stable")]
        return self._finish(ids, row[ids], total=total)

    def _finish(self, ids: Ids, logits: Row, total: float | None = None) -> Dist:
        """top-p, min-p and temperature over candidates sorted best first.

        `total` is the softmax denominator for top-p where candidates outside `ids` count,
        relative to the best logit.
        """
        values = logits.astype(np.float64) - float(logits[0])
        keep = self._kept(values, total)
        weights = np.exp(values[:keep] / self.params.temperature)
        return Dist(ids[:keep], weights / weights.sum())

    def _kept(self, values: Floats, total: float | None = None) -> int:
        """How many of the sorted candidates top-p and min-p leave (at least one)."""
        p = self.params
        keep = len(values)
        if p.top_p < 1.0:
            weights = np.exp(values)
            mass = np.cumsum(weights) / (weights.sum() if total is None else total)
            keep = min(keep, int(np.searchsorted(mass, p.top_p)) + 1)
        if p.min_p > 0.0:
            keep = min(keep, int(np.searchsorted(-values, -math.log(p.min_p), side="right")))
        return max(keep, 1)

    def _constrained(self, row: Row, constraint: Constraint) -> Dist:
        """The chain over the tokens the grammar allows.

        A grammar over a whole vocabulary costs more than a target call, so the best logits
        are tried first and used only where the rest provably cannot change the result.
        """
        pool = largest(row, min(_POOL, len(row)))
        ids = pool[constraint.allowed(pool) & np.isfinite(row[pool])]
        if len(pool) < len(row) and not self._pool_suffices(row, pool, ids):
            every = np.arange(len(row), dtype=np.int32)
            ids = every[constraint.allowed(every) & np.isfinite(row)]
            ids = ids[np.argsort(-row[ids], kind="stable")]
        if not ids.size:
            raise GrammarError(
                "The grammar allows no token here, so the answer cannot go on. "
                "Check the grammar for a rule that can neither continue nor end."
            )
        if self.greedy:
            return one_hot(int(ids[0]))
        if self.params.top_k:
            ids = ids[: self.params.top_k]
        return self._finish(ids, row[ids])

    def _pool_suffices(self, row: Row, pool: Ids, allowed: Ids) -> bool:
        """Whether tokens outside `pool` cannot change the constrained distribution."""
        if not allowed.size:
            return False
        k = self.params.top_k
        if self.greedy or (k and len(allowed) >= k):
            return True
        values = row[allowed].astype(np.float64) - float(row[allowed[0]])
        worst = float(row[pool[-1]] - row[allowed[0]])  # nothing outside is better than this
        if self.params.min_p <= 0.0 or worst >= math.log(self.params.min_p):
            return False
        outside = (k - len(allowed)) if k else (len(row) - len(pool))
        most = float(np.exp(values).sum()) + outside * math.exp(worst)
        return self._kept(values) == self._kept(values, most)


def _check(logit: float | np.floating) -> None:
    if not math.isfinite(logit):
        raise DecodeError(
            "The model produced logits that are not numbers; the file or a setting "
            "(KV type, flash attention) may be broken."
        )


def log_softmax_denominator(row: Row) -> float:
    """log Σ exp(row) in nats, so that logprob(token) = row[token] − this."""
    best = row.max()
    return float(best) + math.log(float(np.exp(row - best).sum(dtype=np.float64)))
