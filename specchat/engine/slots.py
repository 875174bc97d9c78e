"""Which cache answers which prompt: the one that already holds most of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from specchat.engine.drafters import ModelDrafter
from specchat.engine.llama import LlamaCache, LlamaModel
from specchat.engine.prefix import common_prefix
from specchat.errors import BusyError

_WORTH_COPYING = 32  # tokens that another slot must hold in addition
_TURN = 4  # tokens at a prompt's end that a template may write otherwise one turn later


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence: its cache in the target, and in the draft if there is one."""

    target: LlamaCache
    drafter: ModelDrafter | None
    draft: LlamaCache | None
    busy: bool = False
    used: int = 0
    prompt: Sequence[int] = ()  # that it answers, or answered last
    priority: int = 0  # of that answer


class Slots:
    """All sequences of a pair. Not thread-safe: the engine's thread owns it."""

    def __init__(self, target: LlamaModel, draft: LlamaModel | None) -> None:
        self._target, self._draft = target, draft
        self._clock = count(1)
        self.all = [self._new() for _ in range(target.options.sequences)]

    def _new(self) -> Slot:
        cache = self._draft.new_cache() if self._draft else None
        drafter = ModelDrafter(cache, self._target.n_vocab) if cache else None
        return Slot(self._target.new_cache(), drafter, cache)

    @property
    def idle(self) -> int:
        return sum(not slot.busy for slot in self.all)

    def choose(self, prompt: Sequence[int], priority: int = 0) -> Slot | None:
        """The idle slot whose conversation `prompt` continues, else the least recently used,
        those of a higher priority last; None when all are busy. A much longer prefix elsewhere
        is shared by copy.

        A common prefix alone does not make a conversation: all begin with the same template.
        """
        idle = [slot for slot in self.all if not slot.busy]
        if not idle:
            return None
        shared = {id(slot): common_prefix(slot.target.tokens, prompt) for slot in self.all}
        same = [s for s in idle if shared[id(s)] >= max(1, min(len(s.prompt), len(prompt)) - _TURN)]
        can_copy = self._can_copy()
        least = min(idle, key=lambda slot: (slot.priority > priority, slot.used))
        chosen = least
        if same:
            chosen = max(same, key=lambda slot: (shared[id(slot)], -slot.used))
        elif not can_copy:
            chosen = max(idle, key=lambda s: (s.priority <= priority, shared[id(s)], -s.used))
        source = max(self.all, key=lambda slot: shared[id(slot)])
        if shared[id(source)] >= shared[id(chosen)] + _WORTH_COPYING and can_copy:
            # Give up the least useful cache, not the one that was merely closest.
            chosen = least
            if chosen is not source:
                self._copy(source, chosen, shared[id(source)], prompt)
        return chosen

    def promised(self, prompt: Sequence[int]) -> bool:
        """Whether a busy slot will soon hold much more of `prompt` than any does now: such as
        another choice of the same request.
        """
        if not self._can_copy():
            return False
        held = max(common_prefix(slot.target.tokens, prompt) for slot in self.all)
        return any(
            slot.busy and common_prefix(slot.prompt[:-1], prompt) >= held + _WORTH_COPYING
            for slot in self.all
        )

    def occupy(self, slot: Slot, prompt: Sequence[int], priority: int = 0) -> None:
        """An answer to `prompt` begins in `slot`.

        Raises BusyError if another got there first.
        """
        if slot.busy:
            raise BusyError("The engine is answering already; wait or raise --parallel.")
        slot.busy, slot.prompt, slot.priority = True, prompt, priority
        slot.used = next(self._clock)

    def release(self, slot: Slot) -> None:
        """The slot's answer is finished; its caches stay for the next turn."""
        slot.busy = False

    def close(self) -> None:
        """Empty all caches and give the sequences back."""
        for slot in self.all:
            self._target.release(slot.target)
            if self._draft and slot.draft:
                self._draft.release(slot.draft)
        self.all = []

    def _can_copy(self) -> bool:
        models = [self._target] + ([self._draft] if self._draft else [])
        return all(model.rollback == "exact" for model in models)

    def _copy(self, source: Slot, slot: Slot, length: int, prompt: Sequence[int]) -> None:
        self._target.copy_prefix(source.target, slot.target, length)
        if self._draft and source.draft and slot.draft:
            shared = common_prefix(source.draft.tokens, prompt)
            self._draft.copy_prefix(source.draft, slot.draft, shared)
