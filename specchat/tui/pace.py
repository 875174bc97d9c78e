"""How often the screen is brought up to date, so that painting leaves time for keys."""

from __future__ import annotations

import time

SHARE = 0.2  # of a core, for the screen's thread


class Pace:
    """Lets a frame through when those before it have used no more than `SHARE`. Frames are
    `seconds` apart at least; one that is late comes after `latest` whatever it costs.
    """

    def __init__(self, seconds: float = 0.0, latest: float = 0.5) -> None:
        self._seconds, self._latest = seconds, max(latest, seconds)
        self._at, self._used = time.monotonic(), time.thread_time()

    def due(self) -> bool:
        """Whether it is time for a frame; call it on the thread that paints."""
        now, used = time.monotonic(), time.thread_time()
        passed = now - self._at
        cheap = used - self._used <= SHARE * passed
        if passed < self._seconds or not (cheap or passed >= self._latest):
            return False
        self._at, self._used = now, used
        return True
