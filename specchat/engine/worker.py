"""One daemon thread that owns an engine, so that clients stay responsive.

A llama.cpp call cannot be interrupted from outside; a daemon thread does not keep the
process alive, and signals reach the main thread while a call runs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Runs jobs one after the other on its own thread."""

    def __init__(self, name: str = "engine") -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the thread; its result or exception is in the future."""
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def stream(self, work: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Iterate `work()` on the thread, yielding its items here as they come.

        An exception there is raised here. Abandoning the iterator does not stop the work:
        use a `Cancel`.
        """
        items: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def pump() -> None:
            for item in work():
                items.put((True, item))

        future = self.submit(pump)
        future.add_done_callback(lambda _: items.put((False, None)))
        while (entry := items.get())[0]:
            yield entry[1]
        future.result()

    def stop(self) -> None:
        """Let the thread end after the jobs already queued."""
        self._jobs.put(None)
