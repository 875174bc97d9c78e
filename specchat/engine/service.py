"""An engine shared by many clients: one thread, a bounded queue, answers side by side.

The terminal chat and the endpoint submit here; their answers share model calls.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from specchat.engine.batch import Batch, Running
from specchat.engine.engine import Cancel, Engine, Settings
from specchat.engine.events import Event
from specchat.engine.messages import Message
from specchat.errors import Cancelled, QueueFullError, SpecchatError

_CLOSING = "The engine is shutting down."

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Ticket:
    """One submitted request. `on_event` and `on_done` are called on the engine's thread;
    `on_done` gets None or what went wrong. `cancel.set()` ends it wherever it is.
    """

    make_prompt: Callable[[Engine], Sequence[int]]
    settings: Settings
    on_event: Callable[[Event], None]
    on_done: Callable[[BaseException | None], None]
    priority: int
    order: int
    cancel: Cancel = field(default_factory=Cancel)
    prompt: Sequence[int] | None = None  # once made
    began: float = 0.0  # time.monotonic() when it got a slot


class Service:
    """Owns the engine's thread. `waiting` is the most requests that may queue, `reserved` how
    many sequences are only for those of a priority above 0, which are never refused.
    """

    def __init__(self, engine: Engine, waiting: int = 32, reserved: int = 0) -> None:
        self.engine = engine
        self._limit, self._reserved = waiting, reserved
        self._order = count()
        self._lock = threading.Condition()
        self._waiting: list[Ticket] = []
        self._calls: list[tuple[Callable[[], Any], queue.SimpleQueue[tuple[bool, Any]]]] = []
        self._running: dict[Running, Ticket] = {}
        self._answer_seconds = 0.0  # how long the last answers took, newer ones counting more
        self._stopping = False
        self._batch = Batch(engine.target, engine.observe)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -- for any thread -------------------------------------------------------------

    def submit(
        self,
        prompt: Sequence[int] | Sequence[Message] | Callable[[Engine], Sequence[int]],
        settings: Settings | None = None,
        *,
        on_event: Callable[[Event], None],
        on_done: Callable[[BaseException | None], None],
        priority: int = 0,
    ) -> Ticket:
        """Queue a request: token ids, a conversation, or a function that makes token ids on
        the engine's thread. Higher `priority` goes first, equal ones in order of arrival.

        Raises QueueFullError. Everything else that is wrong reaches `on_done`.
        """
        ticket = Ticket(
            make_prompt=_prompt_maker(prompt),
            settings=settings or Settings(),
            on_event=on_event,
            on_done=on_done,
            priority=priority,
            order=next(self._order),
        )
        with self._lock:
            if self._stopping:
                raise SpecchatError(_CLOSING)
            if priority <= 0 and len(self._waiting) >= self._limit:
                raise QueueFullError(len(self._waiting), self._next_end())
            self._waiting.append(ticket)
            self._waiting.sort(key=lambda t: (-t.priority, t.order))
            self._lock.notify()
        return ticket

    def stream(
        self, prompt: Any, settings: Settings | None = None, *, priority: int = 0
    ) -> Iterator[Event]:
        """Submit and iterate the events; closing the iterator cancels the request."""
        items: queue.SimpleQueue[tuple[Event | None, BaseException | None]] = queue.SimpleQueue()
        ticket = self.submit(
            prompt,
            settings,
            on_event=lambda event: items.put((event, None)),
            on_done=lambda error: items.put((None, error)),
            priority=priority,
        )
        try:
            while True:
                event, error = items.get()
                if event is None:
                    if error is not None:
                        raise error
                    return
                yield event
        finally:
            ticket.cancel.set()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run `work` on the engine's thread between two model calls; returns its result.

        Raises SpecchatError when the engine shuts down first.
        """
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        with self._lock:
            if self._stopping:
                raise SpecchatError(_CLOSING)
            self._calls.append((work, answer))
            self._lock.notify()
        good, value = answer.get()
        if not good:
            raise value
        return value

    @property
    def load(self) -> tuple[int, int]:
        """(requests being answered, requests waiting)."""
        with self._lock:
            return len(self._running), len(self._waiting)

    def _next_end(self) -> float:
        """Seconds, at least 1, until one of the running is likely to end; lock held.

        Ends of n answers of mean length s come s/n apart.
        """
        now = time.monotonic()
        oldest = max((now - t.began for t in self._running.values()), default=0.0)
        return max(1.0, (self._answer_seconds or oldest) / max(1, len(self._running)))

    def close(self, wait: float | None = 1.0) -> None:
        """Cancel everything, let the thread end, and free the engine.

        If a model call outlasts `wait` seconds the thread, a daemon, is left behind; None
        waits for it.
        """
        with self._lock:
            self._stopping = True
            for ticket in [*self._waiting, *self._running.values()]:
                ticket.cancel.set()
            self._lock.notify()
        self._thread.join(wait)

    # -- the engine's thread --------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._waiting or self._calls or self._running or self._stopping):
                    self._lock.wait()
                calls, self._calls = self._calls, []
                if self._stopping and not self._running and not self._waiting:
                    break
            for work, answer in calls:
                try:
                    answer.put((True, work()))
                except BaseException as error:
                    answer.put((False, error))
            self._admit()
            self._sweep()
            self._step()
            self._settle()
        for _, answer in calls:  # nobody may wait for a thread that is gone
            answer.put((False, SpecchatError(_CLOSING)))
        self.engine.close()

    def _admit(self) -> None:
        """Start waiting requests while there are idle slots; drop cancelled ones."""
        while True:
            with self._lock:
                dropped = [t for t in self._waiting if t.cancel.is_set()]
                self._waiting = [t for t in self._waiting if not t.cancel.is_set()]
                ticket = self._waiting[0] if self._waiting else None
                if ticket and self.engine.idle_slots <= self._kept_from(ticket):
                    ticket = None
            for other in dropped:
                _report(other, Cancelled("The request was cancelled."))
            if ticket is None or not self._start(ticket):
                return

    def _kept_from(self, ticket: Ticket) -> int:
        """How many of the idle sequences are not for it; lock held."""
        if ticket.priority > 0:
            return 0
        return max(0, self._reserved - sum(t.priority > 0 for t in self._running.values()))

    def _start(self, ticket: Ticket) -> bool:
        """Start the first that waits. False if it had better wait on."""
        entry, failure = None, None
        try:
            if ticket.prompt is None:
                ticket.prompt = ticket.make_prompt(self.engine)
            if self.engine.should_wait(ticket.prompt):
                return False
            steps = self.engine.start(
                ticket.prompt, ticket.settings, ticket.cancel, ticket.priority
            )
            entry = self._batch.add(steps, ticket.on_event, ticket.priority)
        except Exception as error:
            failure = error
        with self._lock:
            self._waiting.remove(ticket)
            if entry is not None:
                self._running[entry] = ticket
                ticket.began = time.monotonic()
                if self._stopping:  # `close` saw it neither waiting nor running
                    ticket.cancel.set()
        if failure is not None:
            _report(ticket, failure)
        return True

    def _sweep(self) -> None:
        """End those that were cancelled, whatever they wait for."""
        for entry, ticket in self._running.items():
            if ticket.cancel.is_set():
                self._batch.cancel(entry)
        self._settle()

    def _step(self) -> None:
        """One model call. With neighbours in it no answer may abort it, for theirs would end."""
        tickets = list(self._running.values())
        self.engine.share(max(1, len(tickets)))
        alone = tickets[0].cancel if len(tickets) == 1 else Cancel()
        alone.attach(self.engine.models)
        try:
            self._batch.step()
        except Exception as error:  # a fault of ours: nobody may wait for ever because of it
            log.exception("unexpected error in a model call")
            self._batch.fail(error)
        finally:
            alone.attach(())

    def _settle(self) -> None:
        """Report the finished ones."""
        for entry, ticket in list(self._running.items()):
            if entry.done:
                with self._lock:
                    del self._running[entry]
                    took = time.monotonic() - ticket.began
                    weight = 0.25 if self._answer_seconds else 1.0
                    self._answer_seconds += weight * (took - self._answer_seconds)
                _report(ticket, entry.error)


def _report(ticket: Ticket, error: BaseException | None) -> None:
    """Tell the client; one that fails to listen must not end the engine's thread."""
    try:
        ticket.on_done(error)
    except Exception:
        log.exception("a client failed when it was told that its request ended")


def _prompt_maker(prompt: Any) -> Callable[[Engine], Sequence[int]]:
    if callable(prompt):
        make: Callable[[Engine], Sequence[int]] = prompt
        return make
    items = list(prompt)
    if items and isinstance(items[0], Message):
        return lambda engine: engine.template.tokens(items)
    return lambda engine: items
