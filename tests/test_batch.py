"""Who takes part in which model call, on probability tables: nobody's stream stalls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from specchat.engine import batch
from specchat.engine.batch import Batch, Running
from specchat.engine.drafters import ModelDrafter
from specchat.engine.events import Event, Finish, FinishReason, Prefill, Round, Token
from specchat.engine.loop import Generation, Request
from specchat.engine.model import Evaluate, Logits
from specchat.engine.policy import FixedLength
from specchat.engine.rules import Match
from specchat.engine.sampling import Chain
from specchat.engine.synthetic import (
    NEUTRAL,
    Alphabet,
    N,
    TableCache,
    TableModel,
    align,
    random_table,
)

TARGET = random_table(3)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the batch sees; only model calls take some."""
    now = [0.0]
    monkeypatch.setattr(batch, "perf_counter", lambda: now[0])
    Recorded.clock = now
    return now


class Recorded(TableModel):
    """A table that notes every call, in a log that models share."""

    clock: list[float]
    pace = 0.25 / 48  # seconds a token

    def __init__(self, name: str, table: object, log: list[tuple[str, list[Evaluate]]]) -> None:
        super().__init__(table)  # type: ignore[arg-type]
        self.name, self.log = name, log

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Logits]:
        self.log.append((self.name, list(requests)))
        self.clock[0] += self.pace * sum(len(r.tokens) for r in requests)
        return super().evaluate(requests)


class Pair:
    """A target and a draft, and the batch that runs them."""

    def __init__(self) -> None:
        self.log: list[tuple[str, list[Evaluate]]] = []
        self.target = Recorded("target", TARGET, self.log)
        self.draft = Recorded("draft", align(TARGET, 0.7), self.log)
        self.batch = Batch(self.target)
        self.events: dict[Running, list[Event]] = {}

    def start(
        self, prompt: int = 1, length: int = 3, tokens: int = 12, seed: int = 0, priority: int = 0
    ) -> Running:
        drafter = ModelDrafter(TableCache(self.draft), N)
        chain = Chain(replace(NEUTRAL, seed=seed), N)
        request = Request([seed % N] * prompt, chain, Match(), max_tokens=tokens)
        policy = FixedLength([drafter], length)
        generation = Generation(request, TableCache(self.target), policy, Alphabet())
        events: list[Event] = []
        entry = self.batch.add(generation.run(), events.append, priority)
        self.events[entry] = events
        return entry

    def run(self) -> None:
        while self.batch.step():
            pass

    def ids(self, entry: Running) -> list[int]:
        return [e.id for e in self.events[entry] if isinstance(e, Token)]


def prompt_tokens(requests: Sequence[Evaluate]) -> int:
    return sum(len(r.tokens) for r in requests if not r.outputs)


def test_sequences_draft_together_and_all_verifications_meet_in_one_call() -> None:
    pair = Pair()
    for seed in range(4):
        pair.start(seed=seed, tokens=40)
    pair.run()
    together = pair.log[: 4 * 8]  # eight rounds, in which nobody has finished yet
    assert {len(requests) for _, requests in together} == {4}
    assert [name for name, _ in together] == ["draft", "draft", "draft", "target"] * 8


def test_answers_do_not_depend_on_the_company() -> None:
    alone = []
    for seed in range(4):
        pair = Pair()
        entry = pair.start(prompt=30 * seed + 1, seed=seed)
        pair.run()
        alone.append(pair.ids(entry))
    pair = Pair()
    entries = [pair.start(prompt=30 * seed + 1, seed=seed) for seed in range(4)]
    pair.run()
    assert [pair.ids(entry) for entry in entries] == alone


def test_prompts_are_read_in_pieces_beside_a_stream() -> None:
    """One piece a model and cycle, of target and draft, however many read prompts."""
    pair = Pair()
    stream = pair.start(tokens=400, seed=1)
    for _ in range(8):
        pair.batch.step()
    others = [pair.start(prompt=300, tokens=1, seed=seed) for seed in (2, 3)]
    pair.log.clear()
    while not all(entry.done for entry in others):
        pair.batch.step()
    ends = [i for i, (name, _) in enumerate(pair.log) if name == "target"]
    for first, last in pairwise([-1, *ends]):
        cycle = pair.log[first + 1 : last + 1]
        assert any(r.outputs for r in cycle[-1][1])  # the stream goes on
        for name in ("target", "draft"):
            assert sum(prompt_tokens(rs) for model, rs in cycle if model == name) <= 48
    assert not stream.done
    read = [e for e in pair.events[others[0]] if isinstance(e, Prefill)]
    assert len(read) > 6


def test_pieces_are_as_large_as_the_time_allows() -> None:
    pair = Pair()
    pair.target.pace = pair.draft.pace = 0.01  # 25 tokens in a quarter of a second
    pair.start(tokens=6, seed=1)
    pair.start(prompt=250, length=0, tokens=1, seed=2)
    pair.run()
    pieces = [n for name, rs in pair.log if name == "target" and (n := prompt_tokens(rs))]
    assert pieces[0] == 48
    assert all(16 <= n <= 25 for n in pieces[1:3])
    assert pieces[-1] > 48  # the stream has ended


def test_prompts_alone_are_read_at_full_speed() -> None:
    pair = Pair()
    for seed in (1, 2):
        pair.start(prompt=400, length=0, tokens=1, seed=seed)
    pair.run()
    assert prompt_tokens(pair.log[0][1]) == 2 * 399


def test_the_prompt_of_higher_priority_is_read_first() -> None:
    pair = Pair()
    pair.start(tokens=100, seed=1)
    for _ in range(4):
        pair.batch.step()
    plain = pair.start(prompt=193, length=0, tokens=1, seed=2)
    first = pair.start(prompt=193, length=0, tokens=1, seed=3, priority=1)
    while not first.done:
        pair.batch.step()
    assert not plain.done
    assert len(pair.events[plain]) <= 2  # one piece, in the call that ended the first


def test_those_who_do_not_fit_into_a_call_are_in_the_next() -> None:
    pair = Pair()
    pair.target.max_batch = 8  # two rounds of four tokens
    entries = [pair.start(seed=seed, tokens=300) for seed in range(5)]
    for _ in range(60):
        pair.batch.step()
    rounds = [sum(isinstance(e, Round) for e in pair.events[entry]) for entry in entries]
    assert max(rounds) - min(rounds) <= 1


def test_a_cancelled_answer_ends_whatever_it_waits_for() -> None:
    pair = Pair()
    neighbour = pair.start(seed=1, tokens=900)
    waits = {}
    for calls in range(24):
        entry = pair.start(prompt=60, seed=2)
        for _ in range(calls):
            pair.batch.step()
        assert entry.request is not None
        waits[entry.request.cache.model.name, bool(entry.request.outputs)] = True  # type: ignore[attr-defined]
        pair.batch.cancel(entry)
        assert entry.done
        assert entry not in pair.batch.running
        last = pair.events[entry][-1]
        assert isinstance(last, Finish)
        assert last.reason is FinishReason.CANCELLED
    assert len(waits) == 4
    pair.run()
    assert len(pair.ids(neighbour)) == 900
