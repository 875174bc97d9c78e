"""Several answers side by side: one engine, one thread, a bounded queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from engine_fixtures import assert_same_greedy

from specchat.engine.engine import Cancel, Engine, Settings
from specchat.engine.events import Event, Finish, FinishReason, Prefill, Round, Token
from specchat.engine.llama import ModelOptions
from specchat.engine.messages import Message
from specchat.engine.sampling import SamplingParams
from specchat.engine.service import Service, Ticket
from specchat.errors import (
    BusyError,
    Cancelled,
    GrammarError,
    PromptTooLongError,
    QueueFullError,
    SpecchatError,
)

GREEDY = SamplingParams(temperature=0.0)
QUESTIONS = (
    "Name three colours and say what each reminds you of.",
    "Explain what a sail does.",
    "Write a short poem about rain.",
)
LONG = "Tell me about the sea. " * 60


def settings(tokens: int = 20, **more: object) -> Settings:
    return Settings(sampling=GREEDY, max_tokens=tokens, draft_length=0, **more)  # type: ignore[arg-type]


@pytest.fixture
def service(smollm2: Path) -> Iterator[Service]:
    options = ModelOptions(n_ctx=512, sequences=2, threads=1, prefill_chunk=64)
    service = Service(Engine.load(smollm2, options=options), waiting=3)
    yield service
    service.close(wait=30)


@dataclass
class Answer:
    """Collects what a submitted request reports."""

    events: list[Event] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    reading: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    ticket: Ticket | None = None

    def submit(self, service: Service, prompt: object, settings: Settings, **more: int) -> Answer:
        self.ticket = service.submit(
            prompt, settings, on_event=self._event, on_done=self._done, **more  # type: ignore[arg-type]
        )  # fmt: skip
        return self

    def _event(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Prefill):
            self.reading.set()
        if isinstance(event, Round):
            self.begun.set()

    def _done(self, error: BaseException | None) -> None:
        self.error = error
        self.done.set()

    def wait(self) -> Answer:
        assert self.done.wait(60)
        return self

    @property
    def tokens(self) -> list[Token]:
        return [e for e in self.events if isinstance(e, Token)]

    @property
    def answer(self) -> list[int]:
        return [t.id for t in self.tokens]

    @property
    def finish(self) -> Finish:
        last = self.events[-1]
        assert isinstance(last, Finish)
        return last


def ask(service: Service, question: str, tokens: int = 20, logprobs: int = 0) -> Answer:
    asked = settings(tokens, logprobs=logprobs)
    return Answer().submit(service, [Message("user", question)], asked)


def test_answers_do_not_depend_on_their_neighbours(service: Service) -> None:
    """Near-ties aside: calls of different sizes may differ in the last bits."""
    alone = [ask(service, q, logprobs=2).wait() for q in QUESTIONS]
    together = [ask(service, q) for q in QUESTIONS]
    for plain, answer in zip(alone, together, strict=True):
        assert_same_greedy(plain, answer.wait())


def test_the_queue_is_bounded_and_first_come_first_served(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [ask(service, QUESTIONS[0], 40) for _ in range(2)]
    for answer in running:
        assert answer.begun.wait(60)
    waiting = [ask(service, q, 2) for q in QUESTIONS]
    monkeypatch.setattr(service, "_answer_seconds", 30.0)  # two at a time: one ends every 15 s
    with pytest.raises(QueueFullError, match="waiting already; try again in 15 s"):
        ask(service, "one too many", 2)
    assert service.load == (2, 3)
    for answer in (*running, *waiting):
        assert answer.wait().error is None
    starts = [a.events[0] for a in waiting]
    assert all(starts)
    assert service.load == (0, 0)


def test_the_higher_priority_goes_first(service: Service) -> None:
    running = [ask(service, QUESTIONS[0], 30) for _ in range(2)]
    for answer in running:
        assert answer.begun.wait(60)
    order: list[str] = []
    answers = [Answer() for _ in range(3)]
    for name, priority, answer in zip("abc", (0, 0, 5), answers, strict=True):
        service.submit(
            [Message("user", "hi")],
            settings(1),
            on_event=lambda e, name=name: order.append(name) if isinstance(e, Round) else None,
            on_done=answer._done,
            priority=priority,
        )
    for answer in (*running, *answers):
        answer.wait()
    assert order[0] == "c"


def test_cancelling_a_waiting_a_reading_and_a_writing_request(service: Service) -> None:
    writing = ask(service, QUESTIONS[0], 400)
    assert writing.begun.wait(60)
    reading = ask(service, LONG, 400)
    waiting = ask(service, QUESTIONS[1], 400)
    assert reading.reading.wait(60)
    for answer in (waiting, reading, writing):
        assert answer.ticket is not None
        answer.ticket.cancel.set()
    for answer in (waiting, reading, writing):
        answer.wait()
    assert isinstance(waiting.error, Cancelled)
    assert writing.finish.reason is FinishReason.CANCELLED
    assert reading.finish.reason is FinishReason.CANCELLED
    assert reading.answer == []
    assert ask(service, QUESTIONS[2], 5).wait().error is None  # nothing is stuck


def test_an_error_stays_with_its_request(service: Service) -> None:
    neighbour = ask(service, QUESTIONS[0], 30)
    assert neighbour.begun.wait(60)
    too_long = ask(service, LONG * 5)
    bad = Answer().submit(service, [Message("user", "hi")], settings(grammar="root ::= nothing"))
    assert isinstance(too_long.wait().error, PromptTooLongError)
    assert isinstance(bad.wait().error, GrammarError)
    assert neighbour.wait().error is None
    assert len(neighbour.answer) == 30


def test_the_slot_that_knows_the_conversation_is_chosen(service: Service) -> None:
    first, second = "Tell me about whales please.", "What is a good name for a cat?"
    ask(service, first, 8).wait()
    ask(service, second, 8).wait()
    for question in (first, second, first):
        again = ask(service, question, 8).wait()
        usage = again.finish.usage
        assert usage.cached_tokens == usage.prompt_tokens - 1


def test_a_long_common_beginning_is_copied_to_another_slot(service: Service) -> None:
    beginning = "You are a sailor. " * 12
    one = ask(service, beginning + "Who are you?", 30)
    assert one.begun.wait(60)
    two = ask(service, beginning + "What do you eat?", 8).wait()
    assert one.wait().error is None
    assert two.finish.usage.cached_tokens > 40


def test_choices_of_one_prompt_read_it_once(service: Service) -> None:
    prompt = [Message("user", LONG[:900])]
    first, second = (Answer().submit(service, prompt, settings(3)) for _ in range(2))
    counts = [answer.wait().finish.usage for answer in (first, second)]
    assert counts[0].cached_tokens == 0
    assert counts[1].cached_tokens > 0.7 * counts[1].prompt_tokens


def test_call_runs_between_steps_and_raises_here(service: Service) -> None:
    running = ask(service, QUESTIONS[0], 30)
    name = service.call(lambda: threading.current_thread().name)
    assert name == "engine"
    with pytest.raises(ZeroDivisionError):
        service.call(lambda: 1 / 0)
    assert running.wait().error is None


def test_stream_yields_and_closing_it_cancels(service: Service) -> None:
    events = service.stream([Message("user", QUESTIONS[0])], settings(400))
    next(e for e in events if isinstance(e, Token))
    events.close()
    deadline = time.monotonic() + 30
    while service.load != (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(PromptTooLongError):
        list(service.stream([Message("user", LONG * 5)], settings()))


def test_close_ends_everything(smollm2: Path) -> None:
    options = ModelOptions(n_ctx=256, threads=1)
    service = Service(Engine.load(smollm2, options=options))
    running, waiting = ask(service, QUESTIONS[0], 200), ask(service, QUESTIONS[1], 200)
    assert running.begun.wait(60)
    service.close(wait=30)
    assert running.wait().finish.reason is FinishReason.CANCELLED
    assert isinstance(waiting.wait().error, Cancelled)
    with pytest.raises(SpecchatError, match="shutting down"):
        ask(service, "too late")


def test_calls_after_or_during_closing_are_refused(smollm2: Path) -> None:
    service = Service(Engine.load(smollm2, options=ModelOptions(n_ctx=256, threads=1)))
    held, go = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def hold() -> None:
        held.set()
        go.wait(60)

    def late() -> None:
        with pytest.raises(SpecchatError, match="shutting down") as error:
            service.call(lambda: None)
        errors.append(error.value)

    threads = [threading.Thread(target=service.call, args=(hold,), daemon=True)]
    threads[0].start()
    assert held.wait(60)
    threads.append(threading.Thread(target=late, daemon=True))  # waits while the service closes
    threads[1].start()
    while not service._calls:
        time.sleep(0.01)
    service.close(wait=0)
    go.set()
    threads.append(threading.Thread(target=late, daemon=True))  # comes when it is closed
    threads[2].start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(errors) == 2


def test_a_listener_that_fails_hurts_nobody_else(service: Service) -> None:
    neighbour = ask(service, QUESTIONS[0], 30)
    broken = Answer()

    def fail(_: object) -> None:
        raise RuntimeError("the listener is gone")

    for _ in range(3):  # more than there are slots
        service.submit([Message("user", "hi")], settings(5), on_event=fail, on_done=broken._done)
        assert isinstance(broken.wait().error, RuntimeError)
        broken.done.clear()
    service.submit([Message("user", "hi")], settings(2), on_event=lambda _: None, on_done=fail)
    assert neighbour.wait().error is None
    assert len(neighbour.answer) == 30
    both = [ask(service, q, 5) for q in QUESTIONS]
    assert all(answer.wait().error is None for answer in both)


def test_measuring_the_pair_leaves_a_running_answer_alone(service: Service) -> None:
    """The first request that drafts makes the engine measure, with another one under way."""
    alone = ask(service, QUESTIONS[0], 30, logprobs=2).wait()
    running = ask(service, QUESTIONS[0], 30)
    assert running.begun.wait(60)
    drafting = Settings(sampling=GREEDY, max_tokens=8)
    other = Answer().submit(service, [Message("user", QUESTIONS[1])], drafting)
    assert other.wait().error is None
    assert running.wait().error is None
    assert_same_greedy(alone, running)


def test_one_engine_answers_one_at_a_time_by_itself(smollm2: Path) -> None:
    with Engine.load(smollm2, options=ModelOptions(n_ctx=256, threads=1)) as engine:
        message = [Message("user", "Count to ten.")]
        first = engine.chat(message, settings(50))
        next(first)
        with pytest.raises(BusyError):
            list(engine.chat(message, settings(5)))
        first.close()  # type: ignore[attr-defined]
        cancel = Cancel()
        cancel.set()
        *_, end = engine.chat(message, settings(50), cancel)
        assert isinstance(end, Finish)
        assert end.reason is FinishReason.CANCELLED
        *_, end = engine.chat(message, settings(5))
        assert isinstance(end, Finish)
        assert end.reason is FinishReason.LENGTH


def test_a_reserved_sequence_is_free_for_the_higher_priority(smollm2: Path) -> None:
    options = ModelOptions(n_ctx=512, sequences=2, threads=1, prefill_chunk=64)
    service = Service(Engine.load(smollm2, options=options), waiting=1, reserved=1)
    try:
        running = ask(service, QUESTIONS[0], 200)
        assert running.begun.wait(60)
        waiting = ask(service, QUESTIONS[1], 200)  # though a sequence is idle
        with pytest.raises(QueueFullError):
            ask(service, QUESTIONS[2], 2)
        prompt = [Message("user", QUESTIONS[2])]
        mine = Answer().submit(service, prompt, settings(2), priority=1).wait()
        assert mine.finish.reason is FinishReason.LENGTH
        assert not waiting.events
        assert not running.done.is_set()
        mine = Answer().submit(service, prompt, settings(300), priority=1)
        assert mine.begun.wait(60)
        assert running.ticket is not None
        running.ticket.cancel.set()
        assert waiting.begun.wait(60)  # beside the one that has the reserved sequence
        assert not mine.done.is_set()
    finally:
        service.close(wait=30)


def test_a_fault_in_a_call_ends_answers_but_not_the_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(requests: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(service.engine.target, "evaluate", fault)
    failed = [ask(service, q) for q in QUESTIONS[:2]]
    assert [type(a.wait().error) for a in failed] == [ZeroDivisionError] * 2
    monkeypatch.undo()
    assert ask(service, QUESTIONS[0], 2).wait().error is None
