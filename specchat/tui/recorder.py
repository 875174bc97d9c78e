"""Saves an answer while it grows, on a thread of its own: a busy disk delays no screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from specchat.engine.events import Event, Finish, Round, Token
from specchat.engine.worker import Worker
from specchat.errors import HistoryError
from specchat.history import History, Status

_EVERY = 0.25  # seconds between two writes


class Recorder:
    """One answer. `on_error` is called on the writing thread, once at most."""

    def __init__(
        self, history: History, worker: Worker, message_id: int, on_error: Callable[[str], None]
    ) -> None:
        self._history, self._worker, self.message_id = history, worker, message_id
        self._on_error = on_error
        self._failed = False
        self._tokens: list[Token] = []
        self._rounds: list[Round] = []
        self._written = time.monotonic()

    def add(self, event: Event) -> None:
        if isinstance(event, Token):
            self._tokens.append(event)
        elif isinstance(event, Round):
            self._rounds.append(event)
        if time.monotonic() - self._written >= _EVERY:
            self.flush()

    def flush(self) -> None:
        """Write what came since the last time."""
        self._written = time.monotonic()
        tokens, rounds = self._tokens, self._rounds
        if tokens or rounds:
            self._tokens, self._rounds = [], []
            self._submit(lambda: self._history.append_answer(self.message_id, tokens, rounds))

    def finish(
        self, status: Status, finish: Finish | None, content: str, reasoning: str, error: str
    ) -> Future[None]:
        """Write the rest, and that the answer has ended."""
        self.flush()

        def write() -> None:
            self._history.finish_answer(
                self.message_id, status, finish, content=content, reasoning=reasoning, error=error
            )

        return self._submit(write)

    def _submit(self, write: Callable[[], object]) -> Future[None]:
        def guarded() -> None:
            try:
                write()
            except HistoryError as error:
                if not self._failed:
                    self._failed = True
                    self._on_error(str(error))

        return self._worker.submit(guarded)
