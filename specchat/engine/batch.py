"""Many generations, few model calls: whoever waits for the same model shares a call.

A cycle serves draft models first, so that sequences draft together, and ends with one target
call in which all verifications meet. Prompts are read in pieces beside that, one a model and
cycle, small enough that nobody's stream stalls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from specchat.engine.events import Event
from specchat.engine.loop import Steps
from specchat.engine.model import Evaluate, Logits, Model
from specchat.errors import Cancelled, DecodeError

Observe = Callable[[Model, Sequence[Evaluate], float], None]

_STALL = 0.25  # seconds that a neighbour's prompt may hold up a stream, each cycle
_SMALLEST, _FIRST = 16, 48  # prompt tokens in such a call: at least, and before any was timed


@dataclass(slots=True, eq=False)
class Running:
    """A generation under way: what it waits for, and where its events go."""

    steps: Steps
    emit: Callable[[Event], None]
    priority: int = 0
    served: int = 0  # when it was last part of a target call
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


Pair = tuple[Running, Evaluate]  # a generation and what it waits for


class Batch:
    """Runs generations side by side, one shared model call per `step`."""

    def __init__(self, target: Model, observe: Observe | None = None) -> None:
        """`observe` is told of every call: model, requests, seconds."""
        self.target = target
        self.running: list[Running] = []
        self._observe = observe
        self._turns = count(1)
        self._fed: set[int] = set()  # models (by id) that read a piece of prompt this cycle
        self._pace: dict[int, float] = {}  # seconds per prompt token, by model

    def add(self, steps: Steps, emit: Callable[[Event], None], priority: int = 0) -> Running:
        """Start a generation; it stops being run when its `done` is true. Prompts of higher
        `priority` are read first.
        """
        entry = Running(steps, emit, priority)
        self.running.append(entry)
        entry.advance(lambda: next(steps))
        self._sweep()
        return entry

    def cancel(self, entry: Running) -> None:
        """Let a generation end now, whatever it waits for."""
        self._fail([entry], Cancelled("The request was cancelled."))
        self._sweep()

    def fail(self, error: Exception) -> None:
        """End all with `error`."""
        self._fail(self.running, error)
        self._sweep()

    def step(self) -> bool:
        """Make one model call. False when nothing is left to run."""
        chosen = self._choose()
        if not chosen:
            return False
        requests = [request for _, request in chosen]
        model = requests[0].cache.model
        start = perf_counter()
        try:
            rows = model.evaluate(requests)
        except Cancelled as error:
            self._fail([entry for entry, _ in chosen], error)
        except DecodeError as error:
            if len(chosen) == 1:
                self._fail([chosen[0][0]], error)
            else:  # find out whose request it was
                for entry, request in chosen:
                    self._alone(entry, request)
        else:
            self._learn(model, requests, perf_counter() - start)
            for (entry, _), answer in zip(chosen, rows, strict=True):
                self._answer(entry, answer)
        self._sweep()
        return bool(self.running)

    def _learn(self, model: Model, requests: Sequence[Evaluate], seconds: float) -> None:
        tokens = sum(len(request.tokens) for request in requests)
        if tokens >= _SMALLEST and not all(request.outputs for request in requests):
            known = self._pace.get(id(model), seconds / tokens)
            self._pace[id(model)] = known + 0.3 * (seconds / tokens - known)
        if self._observe:
            self._observe(model, requests, seconds)

    def _choose(self) -> list[Pair]:
        """Who takes part in the next call, and with what, within the model's limits."""
        waiting = [(entry, entry.request) for entry in self.running if entry.request]
        rounds = [pair for pair in waiting if pair[1].outputs]  # somebody is reading along
        rounds.sort(key=lambda pair: pair[0].served)  # where not all fit, all have their turn
        prompts = [pair for pair in waiting if not pair[1].outputs]
        prompts.sort(key=lambda pair: -pair[0].priority)
        if not rounds:
            self._fed.clear()
        model = self._next_model(rounds, prompts)
        chosen: list[Pair] = []
        room = model.max_batch
        for entry, request in rounds:
            # The first goes in whatever its size: what no call can take, the model refuses.
            if request.cache.model is model and (not chosen or len(request.tokens) <= room):
                chosen.append((entry, request))
                room -= len(request.tokens)
        if rounds:
            room = 0 if id(model) in self._fed else min(room, self._piece(model))
        for entry, request in prompts:
            if request.cache.model is model and room > 0:
                piece = request.tokens[:room]
                chosen.append((entry, Evaluate(request.cache, piece, 0)))
                room -= len(piece)
                self._fed.add(id(model))
        if model is self.target:
            self._fed.clear()
            for entry, _ in chosen:
                entry.served = next(self._turns)
        return chosen

    def _next_model(self, rounds: Sequence[Pair], prompts: Sequence[Pair]) -> Model:
        """Draft models that draft, then those with a piece of prompt to read, the target."""
        for _, request in (*rounds, *prompts):
            model = request.cache.model
            if model is not self.target and (request.outputs or id(model) not in self._fed):
                return model
        return self.target

    def _piece(self, model: Model) -> int:
        """How many prompt tokens to read in a call that others wait for."""
        pace = self._pace.get(id(model))
        return _FIRST if pace is None else max(_SMALLEST, int(_STALL / pace))

    def _answer(self, entry: Running, rows: Logits) -> None:
        entry.advance(lambda: entry.steps.send(rows))

    def _alone(self, entry: Running, request: Evaluate) -> None:
        try:
            rows = request.cache.model.evaluate([request])[0]
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
