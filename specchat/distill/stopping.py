"""Ctrl-C and termination as a question asked between steps, not an exception within one."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """While entered, the first SIGINT or SIGTERM only makes `asked()` true; a second SIGINT
    is Python's own KeyboardInterrupt. Main thread only.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        return self._asked

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
