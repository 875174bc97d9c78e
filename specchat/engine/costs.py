"""What a model call costs: measured at load, at real depths, and corrected while running.

Verification is not free and its cost curve is lumpy (eight tokens may cost no more than
six), so it is measured token count by token count instead of being modelled.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt

from specchat.engine.drift import Drift
from specchat.engine.events import Round
from specchat.engine.model import Cache, Evaluate, Logits
from specchat.engine.sampling import Floats

# Most informative first: a short budget still brackets the useful draft lengths.
LENGTHS = (1, 5, 3, 9, 2, 4, 7, 6, 8, 13, 17)
_PENDING = 32  # live calls after which they are digested at the latest
_OFTEN = 5  # live calls that outweigh a measurement


class Curve:
    """Seconds of one call of one model, by tokens in the call and depth of its cache.

    Measured points are interpolated over token count and depth; live calls correct them
    (`drift.py`).
    """

    def __init__(self, points: Mapping[int, Mapping[int, list[float]]] | None = None) -> None:
        """`points` maps depth to token count to measured seconds."""
        self.points: dict[int, dict[int, list[float]]] = {
            depth: {n: list(times) for n, times in row.items()}
            for depth, row in (points or {}).items()
        }
        self._drift = Drift()
        self._new: list[tuple[int, int, float]] = []

    def __bool__(self) -> bool:
        return bool(self.points or self._new)

    def add(self, depth: int, n: int, seconds: float) -> None:
        """A measurement: `n` tokens in one call on a cache of `depth` tokens."""
        times = self.points.setdefault(depth, {}).setdefault(n, [])
        times.append(seconds)
        del times[:-5]

    def observe(self, n: int, depth: int, seconds: float) -> None:
        """A live call, which corrects the curve."""
        self._new.append((n, depth, seconds))
        if len(self._new) >= _PENDING:
            self._digest()

    def _digest(self) -> None:
        """Turn new observations into ratios: put off until needed, a round must be cheap."""
        for n, depth, seconds in self._new:
            if n > max(self.points.get(self._nearest(depth), {0: []})):  # a guess is no yardstick
                self.add(self._nearest(depth), n, seconds / self._drift.speed)
                continue
            measured = float(self._measured(np.array([n]), depth)[0])
            self._drift.observe(n, seconds / measured)
        self._new.clear()

    def table(self, counts: npt.NDArray[np.int_], depth: int) -> Floats:
        """Seconds of calls with `counts` tokens at `depth`: float64, same shape."""
        self._digest()
        return self._measured(counts, depth) * self._drift.factors(counts)

    def seconds(self, n: int, depth: int) -> float:
        return float(self.table(np.array([n]), depth)[0])

    def absorb(self) -> None:
        """Turn what live calls taught into measured points, so that one bad measurement
        does not outlive the run. The machine's speed just now is left out.
        """
        self._digest()
        if not self.points:
            return
        depth = min(self.points)
        learned = self._drift.learned(_OFTEN)
        before = self._measured(np.array(list(learned), int), depth)
        for (n, factor), seconds in zip(learned.items(), before, strict=True):
            self.add(depth, n, factor * float(seconds))
        self._drift = Drift()

    def spread(self, n: int) -> float:
        """Relative standard error of the time for `n` tokens."""
        self._digest()
        return self._drift.spread(n)

    def _nearest(self, depth: int) -> int:
        """The measured depth that is nearest, `depth` itself where there is none."""
        return min(self.points, key=lambda known: abs(known - depth), default=depth)

    def _measured(self, counts: npt.NDArray[np.int_], depth: int) -> Floats:
        depths = sorted(self.points)
        above = [d for d in depths if d >= depth]
        below = [d for d in depths if d <= depth]
        if not below or not above:  # outside: the nearest measured depth
            return self._row((above or below)[0 if above else -1], counts)
        low, high = below[-1], above[0]
        if low == high:
            return self._row(low, counts)
        share = (depth - low) / (high - low)
        return (1 - share) * self._row(low, counts) + share * self._row(high, counts)

    def _row(self, depth: int, counts: np.ndarray) -> Floats:
        """Interpolated over token count; beyond the last point its last slope goes on.

        No count is taken to cost more than a larger one: a call could be padded to that. So
        one spike in the measurement does not make a draft length look dear.
        """
        known = sorted(self.points[depth])
        medians = [statistics.median_low(self.points[depth][n]) for n in known]
        times = np.minimum.accumulate(medians[::-1])[::-1]
        seconds = np.interp(counts, known, times)
        if len(known) > 1:
            slope = max(0.0, (times[-1] - times[-2]) / (known[-1] - known[-2]))
        else:
            slope = 0.5 * times[0] / known[0]  # a guess until a second point is measured
        return np.asarray(seconds + slope * np.maximum(0, counts - known[-1]), np.float64)


def measure(
    cache: Cache, curve: Curve, budget: float, lengths: Iterable[int] = LENGTHS
) -> Generator[Evaluate, Logits, None]:
    """Time calls of several token counts at the cache's present depth, for `budget` seconds
    at most (the first count is always timed); leaves the cache as it was.
    """
    depth = len(cache.tokens)
    token = cache.tokens[-1] if cache.tokens else 0
    spent, slowest = 0.0, 0.0
    for attempt, n in enumerate([1, *lengths]):
        if depth + n >= cache.model.n_ctx or n > cache.model.max_batch:
            continue
        if attempt > 1 and spent + slowest > budget:
            break
        cache.mark()
        start = perf_counter()
        yield Evaluate(cache, [token] * n, n)
        seconds = perf_counter() - start
        cache.truncate(depth)
        spent += perf_counter() - start
        slowest = max(slowest, seconds)
        if attempt:  # the very first call warms up
            curve.add(depth, n, seconds)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at one depth: `verify[n - 1]` of a target call with n tokens (shape (K + 1,)),
    of one draft step, and of what a round costs besides.
    """

    verify: Floats
    draft_step: float
    overhead: float

    @property
    def plain(self) -> float:
        """Seconds per token without a draft."""
        return float(self.verify[0]) + self.overhead


@dataclass(slots=True)
class PairCosts:
    """Cost curves of a target and its draft (empty without one), shared by conversations.

    `busy` sequences share each call: then a draft of length k costs a call of busy·(k + 1)
    tokens, so drafting becomes dearer as the batch fills.
    """

    target: Curve = field(default_factory=Curve)
    draft: Curve = field(default_factory=Curve)
    overhead: float = 2e-4  # seconds of a round outside model calls, kept up to date
    busy: int = 1

    def at(self, depth: int, longest: int) -> Costs:
        """Costs at a context depth for draft lengths up to `longest`."""
        step = self.draft.seconds(self.busy, depth) if self.draft else 0.0
        counts = self.busy * np.arange(1, longest + 2)
        return Costs(self.target.table(counts, depth), step, self.overhead)

    def observe_call(self, curve: Curve, requests: Sequence[Evaluate], seconds: float) -> None:
        """Learn from a model call, unless it evaluated prompt tokens."""
        if all(request.outputs for request in requests):
            tokens = sum(len(request.tokens) for request in requests)
            depth = max(len(request.cache.tokens) for request in requests)
            curve.observe(tokens, max(0, depth - tokens), seconds)

    def observe_round(self, round_: Round) -> None:
        """Learn what a round costs besides its calls."""
        rest = round_.total_seconds - round_.draft_seconds - round_.verify_seconds
        self.overhead += 0.1 * (min(rest, 4 * self.overhead) - self.overhead)


def tokens_per_call(acceptances: Floats) -> Floats:
    """Expected tokens of a round by draft length 0..K: 1 + Σᵢ Πⱼ≤ᵢ aⱼ, where aⱼ is the
    chance that draft position j is accepted given the earlier ones were (Leviathan et al.
    2022, equation 1, for acceptances that differ by position).
    """
    return np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(acceptances))])


def rates(acceptances: Floats, verify: Floats, draft_step: float, overhead: float) -> Floats:
    """Tokens per second by fixed draft length 0..K.

    `verify[n - 1]` are the seconds of a target call with n tokens, at least K + 1 of them.
    """
    lengths = np.arange(len(acceptances) + 1)
    return tokens_per_call(acceptances) / (verify[lengths] + lengths * draft_step + overhead)


def break_even(length: int, verify: Floats, draft_step: float, overhead: float) -> float | None:
    """The acceptance (equal at every position) at which `length` draft tokens are just as
    fast as plain decoding; None where even 1.0 does not pay.
    """
    low, high = 0.0, 1.0
    cost = (verify[length] + length * draft_step + overhead) / (verify[0] + overhead)
    if 1 + length < cost:
        return None
    for _ in range(30):
        middle = (low + high) / 2
        if tokens_per_call(np.full(length, middle))[-1] < cost:
            low = middle
        else:
            high = middle
    return high
