"""Which sequence answers which prompt, with real caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from specchat.engine.model import Evaluate
from specchat.engine.prefix import reuse
from specchat.engine.slots import Slot, Slots
from specchat.errors import BusyError

SYSTEM = list(range(100, 150))  # what all conversations begin with
TURN = [7, 8, 9]  # what a prompt ends with


@pytest.fixture
def slots(chat_model: Any) -> Iterator[Slots]:
    """Three, as the model has sequences."""
    found = Slots(chat_model, None)
    yield found
    found.close()


Ask = Callable[..., Slot]


@pytest.fixture
def ask(slots: Slots) -> Ask:
    """Answers a prompt in the slot that is chosen; `reused` gets how much was there."""

    def ask(
        prompt: Sequence[int],
        answer: Sequence[int] = (),
        *,
        reused: int | None = None,
        priority: int = 0,
    ) -> Slot:
        slot = slots.choose(prompt, priority)
        assert slot is not None
        slots.occupy(slot, prompt, priority)
        found = reuse(slot.target, prompt)
        missing = [*prompt[found:], *answer]
        slot.target.model.evaluate([Evaluate(slot.target, missing, 0)])
        slots.release(slot)
        assert reused is None or found == reused
        return slot

    return ask


def question(*words: int) -> list[int]:
    return [*words, *TURN]


def test_conversations_keep_their_slots(ask: Ask) -> None:
    histories = [[*SYSTEM, *question(i, i, i, i, i, i)] for i in (1, 2, 3)]
    slots = [ask(history, [20, 21]) for history in histories]
    assert len({id(slot) for slot in slots}) == 3
    for i in (2, 0, 1, 0):
        before = len(histories[i]) + 2
        histories[i] = [*histories[i], 20, 21, *question(30, 31, 32, 33)]
        assert ask(histories[i], [20, 21], reused=before) is slots[i]


def test_an_answer_again_goes_where_it_was(ask: Ask) -> None:
    prompt = [*SYSTEM, *question(1, 2, 3)]
    slot = ask(prompt, [20] * 30)
    ask([*SYSTEM, *question(4, 5, 6, 7, 8)])
    assert ask(prompt, [21] * 30, reused=len(prompt) - 1) is slot


def test_a_template_may_write_the_end_of_a_prompt_otherwise_later(ask: Ask) -> None:
    """As where the mark that opens reasoning is left out of earlier turns."""
    prompt = [*SYSTEM, *question(1, 2, 3, 4, 5, 6)]
    slot = ask([*prompt, 50, 51], [20, 21])
    ask([*SYSTEM, *question(9, 9, 9, 9, 9, 9)])
    assert ask([*prompt, 20, 21, *question(5)], reused=len(prompt)) is slot


def test_an_edited_question_leaves_the_conversation_where_it_is(ask: Ask) -> None:
    long = [*SYSTEM, *question(*[5] * 40)]
    slot = ask(long, [20, 21])
    edited = ask([*long, 20, 21, *question(*[6] * 10)], [22])
    assert edited is slot
    other = ask([*long, 20, 21, *question(*[7] * 10)], reused=len(long) + 2)
    assert other is not slot
    assert ask([*long, 20, 21, *question(*[6] * 10), 22, *question(3)]) is slot


def test_the_least_recently_used_slot_is_given_up(ask: Ask) -> None:
    prompts = [[*SYSTEM, *question(i, i, i, i, i, i)] for i in (1, 2, 3, 4)]
    first, second, third = (ask(prompt) for prompt in prompts[:3])
    ask(prompts[0])
    assert ask(prompts[3], reused=len(SYSTEM)) is second
    assert ask(prompts[1], reused=len(SYSTEM)) is third
    assert ask(prompts[0]) is first


def test_an_answer_of_higher_priority_keeps_its_slot(ask: Ask) -> None:
    mine = [*SYSTEM, *question(1, 1, 1, 1, 1, 1)]
    slot = ask(mine, [20, 21], priority=1)
    others = [ask([*SYSTEM, *question(i, i, i, i, i, i)]) for i in (2, 3, 4, 5)]
    assert slot not in others
    assert ask([*mine, 20, 21, *question(6)], priority=1, reused=len(mine) + 2) is slot
    new = ask([*SYSTEM, *question(7, 7, 7, 7, 7, 7)], priority=1)
    assert new is others[2]  # the least recently used


def test_a_busy_slots_beginning_is_shared(slots: Slots, ask: Ask) -> None:
    prompt = [*SYSTEM, *question(1, 2, 3)]
    first = ask(prompt)
    slots.occupy(first, prompt)
    other = ask(prompt, reused=len(prompt) - 1)
    assert other is not first
    assert first.target.tokens == prompt
    with pytest.raises(BusyError):
        slots.occupy(first, prompt)
    for slot in slots.all:
        slot.busy = True
    assert slots.choose(prompt) is None


def test_what_is_being_read_just_now_is_worth_waiting_for(slots: Slots, ask: Ask) -> None:
    prompt = [*SYSTEM, *question(1, 2, 3)]
    assert not slots.promised(prompt)
    slot = slots.choose(prompt)
    assert slot is not None
    slots.occupy(slot, prompt)
    assert slots.promised(prompt)
    assert slots.promised([*SYSTEM, 1])
    assert not slots.promised([*SYSTEM[:20], 1])
    slot.target.model.evaluate([Evaluate(slot.target, prompt[:30], 0)])
    assert not slots.promised(prompt)  # little more will come
    slots.release(slot)
    slot.target.truncate(0)
    assert not slots.promised(prompt)
