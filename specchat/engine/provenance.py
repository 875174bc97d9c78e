"""What a client is told of every token and round: where it came from, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specchat.engine.drafters import Draft
from specchat.engine.events import Alternative, Kind, Rejected, Round, Token
from specchat.engine.policy import Plan
from specchat.engine.sampling import Dist, Row, largest, log_softmax_denominator


class Vocabulary(Protocol):
    """What is needed to turn tokens into text; see `llama.Tokenizer`."""

    def piece(self, token: int) -> bytes: ...

    def is_eog(self, token: int) -> bool: ...


class Provenance:
    """Makes the events of one answer. `logprobs` is how many alternatives to report per
    token; None reports no log-probabilities at all. They are the raw model's, before the
    sampler chain.
    """

    def __init__(self, vocabulary: Vocabulary, logprobs: int | None) -> None:
        self._vocabulary, self._logprobs = vocabulary, logprobs

    def token(
        self,
        token: int,
        kind: Kind,
        round_: int,
        p: Dist,
        row: Row,
        *,
        q: float | None = None,
        acceptance: float | None = None,
        rejected: Rejected | None = None,
        draft_alternatives: tuple[Alternative, ...] = (),
    ) -> Token:
        """`p` is the target's distribution after the chain, `row` its logits: shape (n_vocab,).
        The text comes later, once it is certain.
        """
        logprob: float | None = None
        alternatives: tuple[Alternative, ...] = ()
        if self._logprobs is not None:
            denominator = log_softmax_denominator(row)
            logprob = float(row[token]) - denominator
            alternatives = self._largest(row, denominator)
        return Token(
            id=token,
            text="",
            kind=kind,
            text_kind=kind,
            round=round_,
            p=p.p(token),
            q=q,
            acceptance=acceptance,
            rejected=rejected,
            logprob=logprob,
            alternatives=alternatives,
            draft_alternatives=draft_alternatives,
        )

    def rejected(self, token: int, p: Dist, q: Dist) -> Rejected:
        """A draft token that the rule refused."""
        return Rejected(token, self._readable(token), p.p(token), q.p(token))

    def alternatives(self, row: Row) -> tuple[Alternative, ...]:
        """The likeliest tokens by a row of logits: shape (n_vocab,)."""
        return self._largest(row, log_softmax_denominator(row))

    def round(
        self,
        index: int,
        plan: Plan,
        draft: Draft,
        tokens: Sequence[Token],
        depth: int,
        clock: Sequence[float],
    ) -> Round:
        """`clock` are the times, in seconds, at which the round began, had its draft, its
        verification, its verdicts, and ended.
        """
        kept = sum(1 for token in tokens if token.kind is Kind.ACCEPTED)
        drafted = tuple((t, self._readable(t)) for t in draft.tokens)
        last = tokens[-1]
        return Round(
            index=index,
            drafter=plan.drafter.name if plan.drafter and drafted else "",
            draft_length=len(drafted),
            accepted=kept,
            emitted=len(tokens),
            depth=depth,
            draft_seconds=clock[1] - clock[0],
            verify_seconds=clock[2] - clock[1],
            sample_seconds=clock[3] - clock[2],
            total_seconds=clock[4] - clock[0],
            draft_tokens=drafted,
            rejected=drafted[kept:],
            replacement=(
                (last.id, self._readable(last.id)) if last.kind is Kind.RESAMPLED else None
            ),
            reason=plan.reason,
        )

    def _largest(self, row: Row, denominator: float) -> tuple[Alternative, ...]:
        return tuple(
            Alternative(int(i), self._readable(int(i)), float(row[i]) - denominator)
            for i in (largest(row, self._logprobs) if self._logprobs else ())
        )

    def _readable(self, token: int) -> str:
        return self._vocabulary.piece(token).decode("utf-8", "replace")
