"""Who answers the app's questions: an engine of this process, or a server elsewhere.

Both make updates on a thread of their own and put them where they are told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from specchat.engine.events import Event, Round
from specchat.engine.messages import Message
from specchat.engine.worker import Worker
from specchat.errors import Cancelled, SpecchatError
from specchat.tui.messages import Began, Depths, Ended, Noted, Ready, Update

if TYPE_CHECKING:
    from specchat.engine.engine import Cancel, Engine, Settings
    from specchat.remote import RemoteEngine

log = logging.getLogger(__name__)

Put = Callable[[Update], None]

_CLIENTS = 64  # requests of the endpoint's clients that may wait


class Local:
    """An engine, which the endpoint may use beside the app through `service`."""

    def __init__(self, engine: Engine) -> None:
        from specchat.engine.service import Service

        self.ready = _ready(engine)
        # One sequence is the app's own, so that its user never waits for a client.
        self.service = Service(engine, _CLIENTS, reserved=min(1, engine.idle_slots - 1))

    def ask(
        self, messages: Sequence[Message], settings: Settings, put: Put, *, continue_final: bool
    ) -> Cancel:
        """Answer a conversation, before what clients of the endpoint ask. Raises SpecchatError."""
        answer = _Answer(put, messages, continue_final)
        ticket = self.service.submit(
            answer.prompt,
            self.service.engine.chat_settings(settings),
            on_event=answer.event,
            on_done=answer.done,
            priority=1,
        )
        return ticket.cancel

    def close(self, wait: float | None) -> None:
        """End all answers and free the models; see `Service.close`."""
        self.service.close(wait)


class _Answer:
    """One answer. All but `__init__` is called on the engine's thread."""

    def __init__(self, put: Put, messages: Sequence[Message], continued: bool) -> None:
        self._put, self._messages, self._continued = put, messages, continued
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
            self._put(Began(self._engine.stats()))
        self._put(event)
        if isinstance(event, Round):
            draft = self._engine.draft_depth(self._prompt)
            self._put(Depths(event.depth + event.emitted, draft))

    def done(self, error: BaseException | None) -> None:
        stopped = error is None or isinstance(error, Cancelled)
        self._put(Ended("" if stopped else told(error)))


class Remote:
    """A model behind a server elsewhere, asked one question after the other."""

    service = None

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self.ready = Ready(
            target=engine.model,
            draft=engine.draft,
            n_ctx=engine.n_ctx,
            refusal="",
            thinking=engine.thinking,
            server=engine.server,
            steers=engine.tells_tokens,
            continues=engine.continues,
        )
        self._worker = Worker("remote answers")
        self._cancel: Cancel | None = None
        self._closing: Future[None] | None = None
        self._noted = 0

    def ask(
        self, messages: Sequence[Message], settings: Settings, put: Put, *, continue_final: bool
    ) -> Cancel:
        """Answer a conversation."""
        from specchat.engine.engine import Cancel

        cancel = self._cancel = Cancel()
        self._worker.submit(lambda: self._answer(messages, settings, put, cancel, continue_final))
        return cancel

    def _answer(
        self,
        messages: Sequence[Message],
        settings: Settings,
        put: Put,
        cancel: Cancel,
        continued: bool,
    ) -> None:
        problem = ""
        try:
            events = self._engine.chat(messages, settings, cancel, continue_final=continued)
            for note in self._engine.notes[self._noted :]:
                put(Noted(note))
            self._noted = len(self._engine.notes)
            put(Began(self._engine.stats()))
            for event in events:
                put(event)
                if isinstance(event, Round):
                    put(Depths(event.depth + event.emitted, None))
        except Exception as error:
            problem = told(error)
        finally:
            put(Ended(problem))

    def close(self, wait: float | None) -> None:
        """Hang up."""
        if self._cancel is not None:
            self._cancel.set()
        if self._closing is None:
            self._closing = self._worker.submit(self._engine.close)
            self._worker.stop()
        with suppress(TimeoutError):
            self._closing.result(wait)


def told(error: BaseException | None) -> str:
    """What to tell the user of an error; one that nobody expected goes to the log too."""
    if isinstance(error, SpecchatError):
        return str(error)
    log.error("unexpected error while answering", exc_info=error)
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
