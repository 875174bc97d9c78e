"""Requests under way, for who wants to show them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class LiveRequest:
    """`path` is a route's template, `began` is `time.monotonic()` when it came."""

    method: str
    path: str
    began: float


class Live:
    """Counted by the server's thread, read by any."""

    def __init__(self) -> None:
        self._requests: dict[int, LiveRequest] = {}
        self.finished = 0

    @contextmanager
    def during(self, method: str, path: str) -> Iterator[None]:
        """While inside, the request is under way."""
        request = LiveRequest(method, path, time.monotonic())
        self._requests[id(request)] = request
        try:
            yield
        finally:
            del self._requests[id(request)]
            self.finished += 1

    def requests(self) -> list[LiveRequest]:
        """Those under way, oldest first."""
        return list(self._requests.values())
