"""The app's side of the engine: jobs go to its thread, updates come back through a queue.

Nothing here waits for the engine, and the engine never waits for the screen.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.engine.engine import Cancel, Engine, Settings
from specchat.engine.events import Event
from specchat.engine.messages import Message
from specchat.engine.stats import Stats
from specchat.engine.worker import Worker
from specchat.errors import LoadCancelled, SpecchatError

Progress = Callable[[str, float], bool]


@dataclass(frozen=True, slots=True)
class Loading:
    """Weights of "target" or "draft" are being read; `share` is 0..1."""

    stage: str
    share: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine can answer. `pair` names its models, `refusal` says why it cannot draft."""

    pair: str
    n_ctx: int
    refusal: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Loading or an answer went wrong; the message is for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Began:
    """An answer is about to come; its figures gather in `stats`."""

    stats: Stats


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over, for whatever reason."""


Update = Loading | Ready | Failed | Began | Ended | Event


class Session:
    """One engine on its thread. `updates` holds what happened since it was last emptied."""

    def __init__(self, load: Callable[[Progress], Engine]) -> None:
        self.updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self._load = load
        self._worker = Worker()
        self._cancel = Cancel()
        self._engine: Engine | None = None

    def start(self) -> None:
        """Load the models, in the background."""
        self._worker.submit(self._open)

    def ask(self, messages: Sequence[Message], settings: Settings) -> None:
        """Answer a conversation, in the background; runs after what was asked before."""
        cancel = self._cancel = Cancel()
        self._worker.submit(lambda: self._answer(messages, settings, cancel))

    def stop(self) -> None:
        """Stop the running answer."""
        self._cancel.set()

    def close(self) -> None:
        """Give up. The engine's thread is a daemon: a running call does not delay the exit."""
        self._cancel.set()
        self._worker.submit(self._close)
        self._worker.stop()

    # -- on the engine's thread -----------------------------------------------------

    def _open(self) -> None:
        cancel = self._cancel

        def report(stage: str, share: float) -> bool:
            self.updates.put(Loading(stage, share))
            return not cancel.is_set()

        try:
            engine = self._engine = self._load(report)
        except LoadCancelled:
            return
        except SpecchatError as error:
            self.updates.put(Failed(str(error)))
            return
        names = [engine.target.path.stem] + ([engine.draft.path.stem] if engine.draft else [])
        self.updates.put(Ready(" + ".join(names), engine.target.n_ctx, engine.refusal))

    def _answer(self, messages: Sequence[Message], settings: Settings, cancel: Cancel) -> None:
        try:
            if self._engine is None:
                raise SpecchatError("No model is loaded, so there is nobody to answer.")
            events = self._engine.chat(messages, settings, cancel)
            self.updates.put(Began(self._engine.stats()))
            for event in events:
                self.updates.put(event)
        except SpecchatError as error:
            self.updates.put(Failed(str(error)))
        finally:
            self.updates.put(Ended())

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
