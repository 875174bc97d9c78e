"""The app's side of the engine: questions go to its service, updates come back by a queue.

Nothing here waits for the engine, and the engine never waits for the screen. The engine's
modules are imported on the loader's thread, so that the first paint does not wait for them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specchat.engine.events import Event, Round
from specchat.engine.messages import Message
from specchat.engine.worker import Worker
from specchat.errors import Cancelled, LoadCancelled, SpecchatError
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
    from specchat.engine.engine import Engine, Settings
    from specchat.engine.service import Service, Ticket

log = logging.getLogger(__name__)


_CLIENTS = 64  # requests of the endpoint's clients that may wait


class Session:
    """One engine, which the endpoint may use beside the app. `updates` holds what happened
    since it was last emptied; `service` is None while no model is loaded.
    """

    def __init__(self, load: Load, settings: Callable[[], Settings]) -> None:
        self.updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        self.service: Service | None = None
        self._load, self._settings = load, settings
        self._loader = Worker("loader")
        self._cancel_load = threading.Event()
        self._ticket: Ticket | None = None  # of the latest answer

    def start(self) -> None:
        """Make the settings and load the models, in the background."""
        self._loader.submit(self._prepare)
        self.load(self._load)

    def load(self, load: Load) -> None:
        """Replace the engine by another, in the background; ends a load still running."""
        self._cancel_load.set()
        cancelled = self._cancel_load = threading.Event()
        self._loader.submit(lambda: self._open(load, cancelled))

    def cancel_load(self) -> None:
        self._cancel_load.set()

    def ask(
        self, messages: Sequence[Message], settings: Settings, *, continue_final: bool = False
    ) -> None:
        """Answer a conversation, in the background, before what clients of the endpoint ask."""
        answer = _Answer(self.updates, messages, continue_final)
        try:
            if self.service is None:
                raise SpecchatError("No model is loaded, so there is nobody to answer.")
            self._ticket = self.service.submit(
                answer.prompt,
                self.service.engine.chat_settings(settings),
                on_event=answer.event,
                on_done=answer.done,
                priority=1,
            )
        except SpecchatError as error:
            answer.done(error)

    def stop(self) -> None:
        """Stop the running answer."""
        if self._ticket is not None:
            self._ticket.cancel.set()

    def close(self) -> None:
        """Give up. All threads are daemons: a running call does not delay the exit."""
        self.cancel_load()
        if self.service is not None:
            self.service.close(wait=0)
        self._loader.submit(self._close)
        self._loader.stop()

    # -- on the loader's thread -----------------------------------------------------

    def _prepare(self) -> None:
        try:
            self.updates.put(Prepared(self._settings()))
        except SpecchatError as error:
            self.updates.put(Prepared(error=error))

    def _open(self, load: Load, cancelled: threading.Event) -> None:
        from specchat.engine.service import Service

        def report(stage: str, share: float) -> bool:
            self.updates.put(Loading(stage, share))
            return not cancelled.is_set()

        self._close()
        try:
            engine = load(report)
            ready = _ready(engine)
            # One sequence is the app's own, so that its user never waits for a client.
            self.service = Service(engine, _CLIENTS, reserved=min(1, engine.idle_slots - 1))
            self.updates.put(ready)
        except LoadCancelled:
            self.updates.put(Unloaded(""))
        except Exception as error:
            self.updates.put(Unloaded(_told(error)))

    def _close(self) -> None:
        """Free the models, once the running call is over: two might not fit in memory."""
        if self.service is not None:
            self.service.close(wait=None)
            self.service = None


class _Answer:
    """One answer to the app. All but `__init__` is called on the engine's thread."""

    def __init__(
        self, updates: queue.SimpleQueue[Update], messages: Sequence[Message], continued: bool
    ) -> None:
        self._updates, self._messages, self._continued = updates, messages, continued
        self._prompt: Sequence[int] = ()
        self._engine: Engine | None = None
        self._begun = False

    def prompt(self, engine: Engine) -> Sequence[int]:
        self._engine = engine
        self._prompt = engine.chat_prompt(self._messages, continue_final=self._continued)
        return self._prompt

    def event(self, event: Event) -> None:
        assert self._engine is not None
        if not self._begun:
            self._begun = True
            self._updates.put(Began(self._engine.stats()))
        self._updates.put(event)
        if isinstance(event, Round):
            draft = self._engine.draft_depth(self._prompt)
            self._updates.put(Depths(event.depth + event.emitted, draft))

    def done(self, error: BaseException | None) -> None:
        stopped = error is None or isinstance(error, Cancelled)
        self._updates.put(Ended("" if stopped else _told(error)))


def _told(error: BaseException | None) -> str:
    if isinstance(error, SpecchatError):
        return str(error)
    log.error("unexpected error on the engine's thread", exc_info=error)
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
