"""How likely the target keeps a draft token, learned from the rounds seen so far.

A drafter's own confidence predicts acceptance well once calibrated, so estimates are kept
per confidence bin, weighted towards recent tokens, for each drafter separately.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from specchat.engine.sampling import Floats

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
CENTRES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.925, 0.965, 0.9875, 0.998)
_MEMORY = 0.985  # what a token's weight keeps with each later judged token
_LEVEL_MEMORY = 0.96  # the same for the level, which follows the text at hand
_BIN_MEMORY = 0.997  # the same for the shape of the calibration, which changes less
_PRIOR_WEIGHT = 6.0  # judged tokens that the prior is worth in each bin
_COMMON_WEIGHT = 5.0  # and over all bins
_CURIOSITY = 0.12  # what a bin never judged is given beyond its estimate, to be tried at all
_HOPE = 0.2  # half a standard deviation of one token's acceptance, for the level's doubt
_RELAX = 0.6  # what the recent level keeps from one answer to the next


class Acceptance:
    """Acceptance estimates of one drafter under one rule and temperature.

    `prior` maps confidence to expected acceptance before anything was seen.
    """

    def __init__(self, prior: Callable[[float], float], longest: int) -> None:
        self._prior = np.array([min(0.99, prior(c)) for c in CENTRES])
        self._count = np.zeros(len(CENTRES))
        self._kept = np.zeros(len(CENTRES))
        self._common = np.zeros(2)  # kept, expected
        self._position = np.zeros((2, longest))  # judged, kept
        self._chance: list[float] = []
        # Confidences met lately: at the first draft position, and at any (which stands for
        # the later ones, and is renewed also while drafts are one token long).
        self._seen: tuple[deque[int], deque[int]] = (deque(maxlen=32), deque(maxlen=64))
        self._update()

    def chance(self, confidence: float) -> float:
        """The calibrated chance that a token with this confidence is accepted."""
        return float(self._chance[bisect_right(EDGES, confidence)])

    def saw(self, position: int, confidence: float) -> None:
        """A draft token was offered at `position` (0-based), judged later or not."""
        at = bisect_right(EDGES, confidence)
        self._seen[1].append(at)
        if position == 0:
            self._seen[0].append(at)

    def relax(self) -> None:
        """A new answer: the calibration stays, the recent level counts for less."""
        self._common *= _RELAX
        self._update()

    def observe(self, confidences: Sequence[float], chances: Sequence[float]) -> None:
        """`chances[i]` is the acceptance chance that draft position i turned out to have."""
        for i, (confidence, kept) in enumerate(zip(confidences, chances, strict=False)):
            at = bisect_right(EDGES, confidence)
            self._common = self._common * _LEVEL_MEMORY + np.array([kept, self._expected(at)])
            self._count *= _BIN_MEMORY
            self._kept *= _BIN_MEMORY
            self._count[at] += 1.0
            self._kept[at] += kept
            self._position[:, i] = self._position[:, i] * _MEMORY + (1.0, kept)
        self._update()

    def _expected(self, at: int) -> float:
        """Acceptance in bin `at` by the calibration alone, without the recent level."""
        kept = _PRIOR_WEIGHT * self._prior[at] + self._kept[at]
        return float(kept / (_PRIOR_WEIGHT + self._count[at]))

    def _update(self) -> None:
        shape = (_PRIOR_WEIGHT * self._prior + self._kept) / (_PRIOR_WEIGHT + self._count)
        # The recent level against what the calibration expected of the same tokens.
        kept, expected = self._common + _COMMON_WEIGHT
        # Given the benefit of the doubt: drafting in vain for a round costs less than not
        # drafting for an answer, and soon removes the doubt.
        level = float(kept / expected + _HOPE / expected**0.5)
        curiosity = _CURIOSITY / (1.0 + self._count)
        self._chance = np.clip(shape * level + curiosity, 0.0, 0.995).tolist()

    def typical(self, position: int, points: int) -> Floats:
        """`points` equally likely acceptance chances of a draft token at this position,
        before its confidence is known: quantiles of those met lately.
        """
        bins = self._seen[position > 0] or self._seen[0]
        chances = [self._chance[b] for b in bins] or [self._chance[8]]
        return np.asarray(np.quantile(chances, (np.arange(points) + 0.5) / points), np.float64)

    def by_position(self) -> Floats:
        """Mean acceptance by draft position: shape (longest,)."""
        judged, kept = self._position
        mean = (kept.sum() + 2 * float(np.mean(self.typical(0, 5)))) / (judged.sum() + 2)
        return np.asarray((kept + 4 * mean) / (judged + 4), np.float64)

    @property
    def mean(self) -> float | None:
        """Recent acceptance of judged tokens; None before any."""
        judged, kept = self._position
        return float(kept.sum() / judged.sum()) if judged.sum() else None

    def state(self) -> dict[str, list[float]]:
        """What is worth keeping for the next conversation."""
        return {"count": self._count.tolist(), "kept": self._kept.tolist()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Start from an earlier `state`, at most worth 40 judged tokens."""
        count, kept = (np.array(state[key], float) for key in ("count", "kept"))
        if count.shape != self._count.shape or not np.isfinite(count).all():
            return
        share = min(1.0, 40.0 / max(count.sum(), 1e-9))
        self._count, self._kept = count * share, np.clip(kept, 0, count) * share
        self._update()
