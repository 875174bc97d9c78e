"""How far live calls drift from the measured cost curve: a small Kalman filter.

The logarithm of live over measured seconds is taken as the machine's present speed, common
to all calls, plus what the measurement of this token count was off by, plus noise. The
speed may change from call to call (other programs, heat), the rest hardly does. So a busy
minute is not mistaken for a dear token count, even when no plain call fell into it.
Filter: R. E. Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from specchat.engine.sampling import Floats

# Standard deviations, in logarithms (0.1: about 10 %).
_SPEED = 0.2  # of the speed, before the first call
_SPEED_STEP = 0.03  # of its change from call to call
_OWN = 0.1  # of the measurement of one token count
_OWN_STEP = 0.001
_NOISE = 0.06  # of one call
_ODD = 2.5  # expected deviations from which on a call is odd
_MOST = 32  # token counts told apart; larger ones count as this


class Drift:
    """Estimates from live calls; 0 means as measured."""

    def __init__(self) -> None:
        self._x = np.zeros(1 + _MOST)  # speed, then the token counts' own
        self._p = np.diag([_SPEED**2] + [_OWN**2] * _MOST)  # covariance
        self._calls = np.zeros(1 + _MOST, int)
        self._odd = np.zeros(1 + _MOST)  # direction in which the last call was odd, by count

    def observe(self, n: int, ratio: float) -> None:
        """A call with `n` tokens took `ratio` times what was measured."""
        n = min(n, _MOST)
        self._calls[n] += 1
        self._p[0, 0] += _SPEED_STEP**2
        self._p[n, n] += _OWN_STEP**2
        surprise = math.log(ratio) - self._x[0] - self._x[n]
        if not self._makes_sense(n, surprise):
            return
        shared = self._p[:, 0] + self._p[:, n]
        gain = shared / (shared[0] + shared[n] + _NOISE**2)
        self._x += gain * surprise
        self._p -= np.outer(gain, shared)

    def _makes_sense(self, n: int, surprise: float) -> bool:
        """One odd call is a spike and is ignored. Two in a row mean that the machine's speed
        jumped; two of the same token count, that its measurement was wrong.
        """
        p = self._p
        expected = math.sqrt(p[0, 0] + 2 * p[0, n] + p[n, n] + _NOISE**2)
        odd = math.copysign(1.0, surprise) if abs(surprise) > _ODD * expected else 0.0
        last, last_own = self._odd[0], self._odd[n]
        self._odd[0] = self._odd[n] = odd
        if odd == 0.0:
            return True
        if odd == last:
            p[0, 0] += surprise**2
        elif odd == last_own:
            p[n, n] += surprise**2
        return odd in (last, last_own)

    def factors(self, counts: npt.NDArray[np.int_]) -> Floats:
        """Expected live over measured seconds by tokens in the call: same shape."""
        return np.asarray(np.exp(self._x[0] + self._x[np.minimum(counts, _MOST)]), np.float64)

    @property
    def speed(self) -> float:
        """How many times the measured seconds calls take just now, whatever their size."""
        return math.exp(self._x[0])

    def spread(self, n: int) -> float:
        """Relative standard error of the expected time of a call with `n` tokens."""
        n = min(n, _MOST)
        return float(np.sqrt(self._p[0, 0] + 2 * self._p[0, n] + self._p[n, n]))

    def learned(self, least: int) -> dict[int, float]:
        """Own factors of the token counts met at least `least` times, without the speed."""
        met = (n for n in range(1, _MOST) if self._calls[n] >= least)
        return {n: math.exp(self._x[n]) for n in met}
