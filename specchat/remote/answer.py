"""From the chunks of a stream to the engine's events."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

from specchat.engine.events import (
    Alternative,
    Event,
    Finish,
    FinishReason,
    Kind,
    Prefill,
    Rejected,
    Round,
    Tally,
    Token,
    Usage,
)
from specchat.remote.chunks import (
    Choice,
    Chunk,
    Counts,
    Logprob,
    SpecchatRound,
    SpecchatToken,
    Timings,
)
from specchat.remote.metrics import Drafted

# Servers send reasoning in a field of its own. These marks stand around it in the events.
THINKING = ("<think>", "</think>")

_COUNTS = tuple(f.name for f in fields(Usage) if f.name != "unknown")


class Reader:
    """One answer. Feed it every chunk; `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._first: float | None = None  # when the first words came
        self._last = self._began
        self._thinking = False
        self._held: list[Token] = []  # reported already, their words still to come
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: dict[str, int] = {}  # by text, for tokens whose ids are not told
        self._counts: dict[str, int] = {}
        self._timings: Timings | None = None
        self._rounds = 0
        self._note = ""
        self.reason: str | None = None  # as the server calls it, once the answer has ended

    @property
    def completion_tokens(self) -> int | None:
        return self._counts.get("completion_tokens")

    def push(self, chunk: Chunk) -> Iterator[Event]:
        if chunk.prompt_progress is not None:
            progress = chunk.prompt_progress
            yield Prefill(progress.processed, progress.total, progress.cache)
        for choice in chunk.choices:
            if choice.index == 0:
                yield from self._choice(choice)
        if chunk.usage is not None:
            self._count(chunk.usage)
        if chunk.timings is not None:
            self._time(chunk.timings)
        if (chunk.usage or chunk.timings) and not self._rounds:
            yield self._tally()

    def drafted(self, drafted: Drafted) -> None:
        """Take over what the server's own counters say of drafting."""
        self._note = drafted.note
        self._counts |= drafted.counts

    def end(self, reason: FinishReason) -> Iterator[Event]:
        """The last events. Times that the server did not tell are those seen from here."""
        yield from (replace(token, text="") for token in self._held)
        if not self._rounds:
            yield self._tally()
        first = self._last if self._first is None else self._first
        prefill, generate = first - self._began, self._last - first
        if self._timings is not None:
            prefill = self._timings.prompt_ms / 1000
            generate = self._timings.predicted_ms / 1000
        yield Finish(reason, self._usage(), prefill, generate)

    # -- words ------------------------------------------------------------------------

    def _choice(self, choice: Choice) -> Iterator[Event]:
        self._held += self._tokens(choice)
        delta = choice.delta
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            if not self._thinking:
                self._thinking = True
                yield _piece(f"{THINKING[0]}\n")
            yield from self._words(thought)
        if delta.content:
            if self._thinking:
                self._thinking = False
                yield _piece(f"\n{THINKING[1]}\n\n")
            yield from self._words(delta.content)
        if choice.specchat.round is not None:
            yield self._round(choice.specchat.round)
        self.reason = choice.finish_reason or self.reason

    def _words(self, text: str) -> Iterator[Token]:
        self._last = self._now()
        if self._first is None:
            self._first = self._last
        found, self._held = fit(self._held, text)
        yield from found

    def _tokens(self, choice: Choice) -> list[Token]:
        """The tokens that a chunk reports, with all that is told of them."""
        entries: Sequence[Logprob] = choice.logprobs.content
        told = choice.specchat.tokens
        tokens = [_token(token) for token in told]
        if not told:
            pieces = [_piece(self._readable(entry)) for entry in entries]
            ids = [self._id(entry.token) for entry in entries]
            tokens = [replace(piece, id=id) for piece, id in zip(pieces, ids, strict=True)]
        if len(entries) == len(tokens):
            tokens = [self._likely(t, entry) for t, entry in zip(tokens, entries, strict=True)]
        return tokens

    def _id(self, text: str) -> int:
        return self._ids.setdefault(text, -2 - len(self._ids))

    def _likely(self, token: Token, entry: Logprob) -> Token:
        """The token with its log-probability and alternatives."""
        found = tuple(
            Alternative(
                token.id if c.token == entry.token else self._id(c.token), c.token, c.logprob
            )
            for c in entry.top_logprobs
            if c.logprob is not None
        )
        return replace(token, logprob=entry.logprob, alternatives=found)

    def _readable(self, entry: Logprob) -> str:
        """What becomes readable with a token that may end inside a character."""
        if entry.bytes is None:
            return entry.token
        try:
            return self._bytes.decode(bytes(entry.bytes))
        except ValueError:  # not bytes at all
            return entry.token

    # -- figures ----------------------------------------------------------------------

    def _round(self, told: SpecchatRound) -> Round:
        self._rounds += 1
        self._counts["target_calls"] = self._rounds
        return Round(**dict(told))

    def _count(self, usage: Counts) -> None:
        told = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        }
        self._counts |= {name: count for name, count in told.items() if count is not None}

    def _time(self, timings: Timings) -> None:
        self._timings = timings
        self._counts["completion_tokens"] = timings.predicted_n
        if timings.cache_n is not None:
            self._counts["cached_tokens"] = timings.cache_n
            self._counts["prompt_tokens"] = timings.cache_n + timings.prompt_n
        if timings.draft_n is not None and timings.draft_n_accepted is not None:
            accepted = timings.draft_n_accepted
            self._counts |= {"drafted_tokens": timings.draft_n, "accepted_tokens": accepted}
            if not self._rounds:  # each call brings one token besides those accepted
                self._counts["target_calls"] = max(0, timings.predicted_n - accepted)

    def _usage(self) -> Usage:
        unknown = tuple(name for name in _COUNTS if name not in self._counts)
        return Usage(**self._counts, unknown=unknown)

    def _tally(self) -> Tally:
        seconds: float | None = None
        tokens = self.completion_tokens or 0
        if self._timings is not None:
            seconds = self._timings.predicted_ms / 1000
        elif self._first is not None and tokens > 1:
            # Seen are the times between tokens, one fewer than there are tokens.
            seconds = (self._last - self._first) * tokens / (tokens - 1)
        return Tally(self._usage(), seconds, self._note)


def fit(tokens: Sequence[Token], text: str) -> tuple[list[Token], list[Token]]:
    """Tokens whose texts together are `text`, and those that come after it.

    Servers leave marks out of a text, and hold back what could become one, so tokens may
    have texts that are not shown. Where they fit nothing, their last one gets all of `text`;
    where there is none, a piece of unknown origin does.
    """
    start = "".join(token.text for token in tokens).find(text)
    if start < 0 or not tokens:
        silent = [replace(token, text="") for token in tokens[:-1]]
        return [*silent, replace(tokens[-1] if tokens else _piece(""), text=text)], []
    end, at = start + len(text), 0
    found: list[Token] = []
    for index, token in enumerate(tokens):
        if at >= end:
            return found, list(tokens[index:])
        part = token.text[max(start - at, 0) : end - at]
        found.append(replace(token, text=part))
        at += len(token.text)
    return found, []


def _piece(text: str) -> Token:
    return Token(-1, text, Kind.UNKNOWN, Kind.UNKNOWN, -1, None)


def _token(told: SpecchatToken) -> Token:
    rejected = Rejected(**dict(told.rejected)) if told.rejected else None
    return Token(
        told.id, told.text, told.kind, told.text_kind or told.kind, told.round, told.p, told.q,
        told.acceptance, rejected,
    )  # fmt: skip
