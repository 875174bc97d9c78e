"""The app's side of the engine: jobs go to its thread, updates come back through a queue.

Nothing here waits for the engine, and the engine never waits for the screen. The engine's
modules are imported on its thread, so that the first paint does not wait for them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specchat.engine.events import Round
from specchat.engine.messages import Message
from specchat.engine.worker import Worker
from specchat.errors import LoadCancelled, SpecchatError
from specchat.tui.messages import (
    Began,
    Depths,
    Ended,
    Load,
    Loading,
    Prepared,
    Ready,
    Unloaded,
    Update,
)

if TYPE_CHECKING:
    from specchat.engine.engine import Cancel, Engine, Settings

log = logging.getLogger(__name__)


class Session:
    """One engine on its thread. `updates` holds what happened since it was last emptied."""

    def __init__(self, load: Load, settings: Callable[[], Settings]) -> None:
        self.updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self._load, self._settings = load, settings
        self._worker = Worker()
        self._cancel: Cancel | None = None
        self._cancel_load = threading.Event()
        self._engine: Engine | None = None

    def start(self) -> None:
        """Make the settings and load the models, in the background."""
        self._worker.submit(self._prepare)
        self.load(self._load)

    def load(self, load: Load) -> None:
        """Replace the engine by another, in the background; ends a load still running."""
        self._cancel_load.set()
        cancelled = self._cancel_load = threading.Event()
        self._worker.submit(lambda: self._open(load, cancelled))

    def cancel_load(self) -> None:
        self._cancel_load.set()

    def ask(
        self, messages: Sequence[Message], settings: Settings, *, continue_final: bool = False
    ) -> None:
        """Answer a conversation, in the background; runs after what was asked before."""
        from specchat.engine.engine import Cancel

        cancel = self._cancel = Cancel()
        self._worker.submit(lambda: self._answer(messages, settings, cancel, continue_final))

    def stop(self) -> None:
        """Stop the running answer."""
        if self._cancel is not None:
            self._cancel.set()

    def close(self) -> None:
        """Give up. The engine's thread is a daemon: a running call does not delay the exit."""
        self.stop()
        self.cancel_load()
        self._worker.submit(self._close)
        self._worker.stop()

    # -- on the engine's thread -----------------------------------------------------

    def _prepare(self) -> None:
        try:
            self.updates.put(Prepared(self._settings()))
        except SpecchatError as error:
            self.updates.put(Prepared(error=error))

    def _open(self, load: Load, cancelled: threading.Event) -> None:
        def report(stage: str, share: float) -> bool:
            self.updates.put(Loading(stage, share))
            return not cancelled.is_set()

        self._close()
        try:
            engine = self._engine = load(report)
            self.updates.put(_ready(engine))
        except LoadCancelled:
            self.updates.put(Unloaded(""))
        except Exception as error:
            self.updates.put(Unloaded(_told(error)))

    def _answer(
        self, messages: Sequence[Message], settings: Settings, cancel: Cancel, continued: bool
    ) -> None:
        problem = ""
        try:
            if self._engine is None:
                raise SpecchatError("No model is loaded, so there is nobody to answer.")
            events = self._engine.chat(messages, settings, cancel, continue_final=continued)
            self.updates.put(Began(self._engine.stats()))
            for event in events:
                self.updates.put(event)
                if isinstance(event, Round):
                    self.updates.put(_depths(self._engine, event))
        except Exception as error:
            problem = _told(error)
        finally:
            self.updates.put(Ended(problem))

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _told(error: Exception) -> str:
    if isinstance(error, SpecchatError):
        return str(error)
    log.exception("unexpected error on the engine's thread")
    return f"Unexpected {type(error).__name__}: {error}. Details are in the log."


def _ready(engine: Engine) -> Ready:
    thinking = engine.template.thinking_tags
    opened = False
    if thinking:
        prompt = engine.template.render([Message("user", "?")])
        opened = prompt.rstrip().endswith(thinking[0])
    draft = engine.draft.path.stem if engine.draft else ""
    return Ready(
        engine.target.path.stem, draft, engine.target.n_ctx, engine.refusal, thinking, opened
    )


def _depths(engine: Engine, last: Round) -> Depths:
    drafter = next((d for d in engine.drafters("draft") if hasattr(d, "cache")), None)
    draft = len(drafter.cache.tokens) if drafter is not None else None
    return Depths(last.depth + last.emitted, draft)
