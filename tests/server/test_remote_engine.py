"""Our own engine for another specchat: what the local engine tells arrives through the endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from server.conftest import DEFAULTS, Endpoint

from specchat.engine.engine import Cancel
from specchat.engine.events import Event, Finish, FinishReason, Kind, Round, Token
from specchat.engine.messages import Message
from specchat.errors import EndpointError
from specchat.remote import RemoteEngine

pytestmark = pytest.mark.model

COUNT = [Message("user", "Repeat: red blue red blue red blue red blue")]
BEGUN = [*COUNT, Message("assistant", "red blue green red blue green red blue")]
SETTINGS = replace(DEFAULTS, max_tokens=24, draft_length=2, drafter="lookup", logprobs=2)


@pytest.fixture
def remote(single: Endpoint) -> Iterator[RemoteEngine]:
    engine = RemoteEngine(single.url)
    yield engine
    engine.close()


def tokens(events: list[Event]) -> list[Token]:
    return [event for event in events if isinstance(event, Token)]


def test_tokens_rounds_and_figures_are_those_of_the_engine(
    single: Endpoint, remote: RemoteEngine
) -> None:
    prompt = single.service.engine.template.tokens(
        BEGUN, add_generation_prompt=False, continue_final=True
    )
    here = list(single.service.stream(prompt, SETTINGS))
    there = list(remote.chat(BEGUN, SETTINGS, continue_final=True))
    plain = [(t.id, t.text, t.kind, t.text_kind, t.round) for t in tokens(here)]
    assert [(t.id, t.text, t.kind, t.text_kind, t.round) for t in tokens(there)] == plain
    assert {t.kind for t in tokens(there)} >= {Kind.ACCEPTED, Kind.RESAMPLED}
    shapes = [(r.index, r.draft_length, r.accepted, r.emitted, r.depth, r.draft_tokens)
              for events in (here, there) for r in events if isinstance(r, Round)]  # fmt: skip
    assert shapes[: len(shapes) // 2] == shapes[len(shapes) // 2 :]
    end, expected = there[-1], here[-1]
    assert isinstance(end, Finish)
    assert isinstance(expected, Finish)
    assert end.usage.unknown == ("draft_cached_tokens",)
    for name in ("prompt_tokens", "completion_tokens", "drafted_tokens", "accepted_tokens",
                 "target_calls"):  # fmt: skip
        assert getattr(end.usage, name) == getattr(expected.usage, name)
    with_likely = [t for t in tokens(there) if t.alternatives]
    assert with_likely[0].alternatives[0].text == tokens(here)[0].alternatives[0].text
    assert remote.model == "smol"
    assert remote.n_ctx == 512
    stats = remote.stats()
    for event in there:
        stats.add(event)
    assert stats.tokens == len(tokens(there))
    assert stats.tokens_per_second is not None


def test_the_servers_own_complaint_arrives(remote: RemoteEngine) -> None:
    with pytest.raises(EndpointError, match=r"400.*context"):
        list(remote.chat([Message("user", "word " * 2000)], SETTINGS))


def test_cancelling_here_stops_the_answer_there(single: Endpoint, remote: RemoteEngine) -> None:
    cancel = Cancel()
    events: list[Event] = []
    for event in remote.chat(COUNT, replace(SETTINGS, max_tokens=400), cancel):
        events.append(event)
        if len(tokens(events)) == 3:
            cancel.set()
    assert isinstance(events[-1], Finish)
    assert events[-1].reason is FinishReason.CANCELLED
    assert list(single.service.stream([1, 2], replace(SETTINGS, max_tokens=1)))  # it is free again
    assert single.service.load == (0, 0)
