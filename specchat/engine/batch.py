"""Many generations, few model calls: whoever waits for the same model shares a call.

Draft models are served first, so that sequences draft together and all verifications of a
round meet in one target call; prompt chunks ride along where there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from specchat.engine.events import Event
from specchat.engine.loop import Steps
from specchat.engine.model import Evaluate, Logits, Model
from specchat.errors import Cancelled, DecodeError

Observe = Callable[[Model, Sequence[Evaluate], float], None]


@dataclass(slots=True, eq=False)
class Running:
    """A generation under way: what it waits for, and where its events go."""

    steps: Steps
    emit: Callable[[Event], None]
    request: Evaluate | None = None
    error: BaseException | None = None
    done: bool = False

    def advance(self, resume: Callable[[], Evaluate | Event]) -> None:
        """Run on to the next model call or the end, passing events on."""
        self.request = None
        try:
            item = resume()
            while not isinstance(item, Evaluate):
                self.emit(item)
                item = next(self.steps)
            self.request = item
        except StopIteration:
            self.done = True
        except Exception as error:
            self.steps.close()  # still under way where `emit` failed: it must give its slot back
            self.error, self.done = error, True


class Batch:
    """Runs generations side by side, one shared model call per `step`."""

    def __init__(self, target: Model, observe: Observe | None = None) -> None:
        """`observe` is told of every call: model, requests, seconds."""
        self.target = target
        self.running: list[Running] = []
        self._observe = observe

    def add(self, steps: Steps, emit: Callable[[Event], None]) -> Running:
        """Start a generation; it stops being run when its `done` is true."""
        entry = Running(steps, emit)
        self.running.append(entry)
        entry.advance(lambda: next(steps))
        self._sweep()
        return entry

    def remove(self, entry: Running) -> None:
        """Stop a generation; it rolls its caches back."""
        entry.steps.close()
        entry.done = True
        self._sweep()

    def step(self) -> bool:
        """Make one model call. False when nothing is left to run."""
        chosen = self._choose()
        if not chosen:
            return False
        requests = [entry.request for entry in chosen if entry.request is not None]
        model = requests[0].cache.model
        start = perf_counter()
        try:
            rows = model.evaluate(requests)
        except Cancelled as error:
            self._fail(chosen, error)
        except DecodeError as error:
            if len(chosen) == 1:
                self._fail(chosen, error)
            else:  # find out whose request it was
                for entry in chosen:
                    self._alone(entry)
        else:
            if self._observe:
                self._observe(model, requests, perf_counter() - start)
            for entry, answer in zip(chosen, rows, strict=True):
                self._answer(entry, answer)
        self._sweep()
        return bool(self.running)

    def _choose(self) -> list[Running]:
        """Those whose requests go into the next call, within the model's limits."""
        waiting = [(entry, entry.request) for entry in self.running if entry.request]
        if not waiting:
            return []
        models = [request.cache.model for _, request in waiting]
        model = next((m for m in models if m is not self.target), self.target)
        # Those with outputs (somebody is reading along) before prompt chunks.
        waiting.sort(key=lambda pair: pair[1].outputs == 0)
        chosen: list[Running] = []
        room = model.max_batch
        for entry, request in waiting:
            # The first goes in whatever its size: what no call can take, the model refuses.
            if request.cache.model is model and (not chosen or len(request.tokens) <= room):
                chosen.append(entry)
                room -= len(request.tokens)
        return chosen

    def _answer(self, entry: Running, rows: Logits) -> None:
        entry.advance(lambda: entry.steps.send(rows))

    def _alone(self, entry: Running) -> None:
        assert entry.request is not None
        try:
            rows = entry.request.cache.model.evaluate([entry.request])[0]
        except (Cancelled, DecodeError) as error:
            self._fail([entry], error)
        else:
            self._answer(entry, rows)

    def _fail(self, chosen: Sequence[Running], error: Exception) -> None:
        for entry in chosen:
            entry.advance(lambda entry=entry: entry.steps.throw(error))  # type: ignore[misc]

    def _sweep(self) -> None:
        self.running = [entry for entry in self.running if not entry.done]


def drive(steps: Steps, observe: Observe | None = None) -> Iterator[Event]:
    """Run one generation alone. Closing the iterator rolls its caches back."""
    events: list[Event] = []
    entry = Running(steps, events.append)
    batch: Batch | None = None
    try:
        entry.advance(lambda: next(steps))
        while True:
            yield from events
            events.clear()
            if entry.error is not None:
                raise entry.error
            if entry.request is None:
                return
            if batch is None:
                batch = Batch(entry.request.cache.model, observe)
                batch.running.append(entry)
            batch.step()
    finally:
        steps.close()
