"""Where draft tokens come from: a small model, or the conversation itself.

A drafter proposes tokens with the distributions they were drawn from, and afterwards drops
what was rejected. Proposing is a generator, so that its model calls can be run by whoever
drives the loop (and shared between sequences).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, TypeVar

import numpy as np

from specchat.engine.events import Alternative
from specchat.engine.model import Cache, Evaluate, Logits
from specchat.engine.prefix import missing_chunks, reuse
from specchat.engine.sampling import Chain, Constraint, Dist, one_hot
from specchat.errors import GrammarError

T = TypeVar("T")
Steps = Generator[Evaluate, Logits, T]


class Step(IntEnum):
    """What to do with the next draft token, once its confidence is known."""

    STOP = 0  # leave it out
    LAST = 1  # take it, draft no more
    MORE = 2  # take it and go on


Judge = Callable[[int, float], Step]


class CloneableConstraint(Constraint, Protocol):
    """A grammar that can be advanced on a copy; see `llama.Grammar`."""

    def accept(self, token: int) -> None: ...

    def clone(self) -> CloneableConstraint: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Draft:
    """Proposed tokens, each with the distribution it was drawn from and the drafter's
    confidence in its best token (0..1). `calls` counts the calls of a draft model.
    `alternatives` are filled on request, one tuple a token.
    """

    tokens: list[int] = field(default_factory=list)
    dists: list[Dist] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    calls: int = 0
    alternatives: list[tuple[Alternative, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What the loop asks of a drafter: at most `length` tokens after `context`.

    `worth(tokens so far, confidence in the next)` decides whether to take the next one; an
    end-of-generation token is the last. `recent` is the penalty window of the context.
    """

    context: Sequence[int]
    recent: Sequence[int]
    length: int
    chain: Chain
    worth: Judge
    rng: np.random.Generator
    is_eog: Callable[[int], bool]
    grammar: CloneableConstraint | None = None
    alternatives: Callable[[Logits], tuple[Alternative, ...]] | None = None


class Drafter(Protocol):
    """One way to guess what the target will say."""

    name: str

    def begin(self, prompt: Sequence[int]) -> int:
        """Start on a new prompt; returns how many of its tokens a draft's cache holds."""

    def catch_up(self, context: Sequence[int]) -> Steps[None]:
        """Evaluate what is missing of `context`, but for its last token."""

    def strength(self, context: Sequence[int]) -> int:
        """How good a proposal to expect: 0 none; lookup gives its match length."""

    def propose(self, request: DraftRequest) -> Steps[Draft]:
        """Guess the next tokens."""

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens seen so far were kept."""


class ModelDrafter:
    """A draft model with its own KV cache, kept across rounds: only rejected tokens leave
    it. After a fully accepted round the last draft token, never evaluated, goes into the
    same call as the next step.
    """

    name = "draft"

    def __init__(self, cache: Cache, n_vocab: int) -> None:
        """`n_vocab` is the target's: padding ids beyond it are never proposed."""
        self.cache = cache
        self._n_vocab = n_vocab

    def begin(self, prompt: Sequence[int]) -> int:
        return reuse(self.cache, prompt)

    def catch_up(self, context: Sequence[int]) -> Steps[None]:
        if len(context) < self.cache.model.n_ctx:
            for chunk in missing_chunks(self.cache, context):
                yield Evaluate(self.cache, chunk, 0)

    def strength(self, context: Sequence[int]) -> int:
        """1 while the context fits the draft's own, which may be the smaller one."""
        return int(len(context) < self.cache.model.n_ctx)

    def propose(self, request: DraftRequest) -> Steps[Draft]:
        draft = Draft()
        length = min(request.length, self.cache.model.n_ctx - len(request.context))
        recent = list(request.recent)
        if len(request.context) - len(self.cache.tokens) > self.cache.model.prefill_chunk:
            yield from self.catch_up(request.context)
        self.cache.mark()
        feed = list(request.context[len(self.cache.tokens) :])
        grammar = request.grammar.clone() if request.grammar else None
        try:
            while True:
                rows = yield Evaluate(self.cache, feed, 1)
                row = rows[0, : self._n_vocab]
                draft.calls += 1
                try:
                    dist, confidence = request.chain.draft_distribution(row, recent, grammar)
                except GrammarError:  # a dead end on a way the target need not take
                    break
                step = request.worth(len(draft.tokens), confidence)
                if step is Step.STOP:
                    break
                token = dist.draw(request.rng.random())
                draft.tokens.append(token)
                draft.dists.append(dist)
                draft.confidences.append(confidence)
                if request.alternatives:
                    draft.alternatives.append(request.alternatives(row))
                full = len(draft.tokens) == length
                if full or step is Step.LAST or request.is_eog(token):
                    break
                recent.append(token)
                feed = [token]
                if grammar:
                    grammar.accept(token)
        finally:
            if grammar:
                grammar.close()
        return draft

    def rewind(self, length: int) -> None:
        self.cache.truncate(min(length, len(self.cache.tokens)))


class LookupDrafter:
    """Prompt lookup: what followed the same n-gram earlier (Saxena 2023, "Prompt Lookup
    Decoding"). No second model; good where the answer repeats its prompt. `corpus` is
    extra text to look in, such as a predicted answer.
    """

    name = "lookup"
    ngram = 2  # shortest match
    longest = 16  # matches are not measured beyond this
    candidates = 8  # earlier places compared for the longest match

    def __init__(self, corpus: Sequence[int] = ()) -> None:
        self._corpus = list(corpus)
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._match: tuple[int, int, int] = (-1, 0, 0)  # context length, place, match length

    def begin(self, prompt: Sequence[int]) -> int:
        self._text, self._places = [], {}
        self._match = (-1, 0, 0)
        self._add([*self._corpus, *prompt])
        return 0

    def catch_up(self, context: Sequence[int]) -> Steps[None]:
        self._add(context[len(self._text) - len(self._corpus) :])
        yield from ()  # a generator like any other drafter's

    def strength(self, context: Sequence[int]) -> int:
        """Length of the longest earlier match of the context's end, in tokens."""
        self._add(context[len(self._text) - len(self._corpus) :])
        if self._match[0] != len(context):
            self._match = (len(context), *self._find())
        return self._match[2]

    def propose(self, request: DraftRequest) -> Steps[Draft]:
        draft = Draft()
        matched = self.strength(request.context)
        place = self._match[1]
        grammar = request.grammar.clone() if request.grammar else None
        try:
            for token in self._text[place : place + request.length] if matched else ():
                # Each accepted token makes the match one longer.
                confidence = min(1.0, (matched + len(draft.tokens)) / self.longest)
                step = request.worth(len(draft.tokens), confidence)
                if step is Step.STOP:
                    break
                if grammar:
                    if not grammar.allowed(np.array([token], np.int32))[0]:
                        break
                    grammar.accept(token)
                draft.tokens.append(token)
                draft.dists.append(one_hot(token))
                draft.confidences.append(confidence)
                if step is Step.LAST or request.is_eog(token):
                    break
        finally:
            if grammar:
                grammar.close()
        if request.alternatives:
            draft.alternatives = [()] * len(draft.tokens)
        yield from ()
        return draft

    def rewind(self, length: int) -> None:
        """Nothing to drop: only kept tokens are ever added."""

    def _add(self, tokens: Sequence[int]) -> None:
        """Index `tokens`; the n-gram at the very end becomes findable with its successor."""
        n = self.ngram
        for token in tokens:
            end = len(self._text)
            if end >= n:
                key = tuple(self._text[end - n : end])
                self._places.setdefault(key, []).append(end)
            self._text.append(token)

    def _find(self) -> tuple[int, int]:
        """Where to copy from and how long the match was: the longest, then the latest."""
        text, n = self._text, self.ngram
        places = self._places.get(tuple(text[-n:]), []) if len(text) >= n else []
        best = (0, 0)
        for place in reversed(places[-self.candidates :]):
            length = n
            while (
                length < self.longest
                and place - length > 0
                and text[place - length - 1] == text[-length - 1]
            ):
                length += 1
            if length > best[1]:
                best = (place, length)
        return best
