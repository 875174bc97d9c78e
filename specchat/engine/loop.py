"""The draft/verify loop: the whole of speculative decoding, for one sequence.

Each round a drafter proposes a few tokens, the target evaluates them all in one call, and
an acceptance rule keeps the first ones and supplies one more. `Generation.run` is a
generator: it yields `Evaluate` requests, to be answered with logits, and events for the
client. Whoever drives it (`batch.py`) may answer the requests of many sequences together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from specchat.engine.drafters import CloneableConstraint, Draft, DraftRequest
from specchat.engine.events import Event, Finish, FinishReason, Kind, Prefill, Token, Usage
from specchat.engine.model import Cache, Evaluate, Logits
from specchat.engine.policy import Outcome, Plan, Policy
from specchat.engine.prefix import missing_chunks, reuse
from specchat.engine.provenance import Provenance, Vocabulary
from specchat.engine.rules import Rule
from specchat.engine.sampling import Chain
from specchat.engine.text import TextStream
from specchat.errors import BadRequestError, Cancelled, PromptTooLongError


@dataclass(slots=True)
class Request:
    """One answer to make: `prompt` are token ids; `max_tokens` None means until the model
    or the context ends. `logprobs` is how many alternatives to report per token (None: no
    log-probabilities). `cancelled` is asked between calls. The request owns `grammar`.
    """

    prompt: Sequence[int]
    chain: Chain
    rule: Rule
    max_tokens: int | None = None
    stops: Sequence[str] = ()
    grammar: CloneableConstraint | None = None
    logprobs: int | None = None
    cancelled: Callable[[], bool] = lambda: False


Steps = Generator[Evaluate | Event, Logits, None]


class Generation:
    """One answer being made. `context` is the prompt and all tokens emitted so far."""

    def __init__(
        self, request: Request, target: Cache, policy: Policy, vocabulary: Vocabulary
    ) -> None:
        """Raises BadRequestError for an empty prompt, PromptTooLongError."""
        n_ctx = target.model.n_ctx
        if not request.prompt:
            raise BadRequestError("The prompt is empty: there is nothing to continue.", "prompt")
        if len(request.prompt) >= n_ctx:
            raise PromptTooLongError(len(request.prompt), n_ctx)
        for token in (min(request.prompt), max(request.prompt)):
            if not 0 <= token < target.model.n_vocab:
                raise BadRequestError(
                    f"The prompt has token {token}; this model has {target.model.n_vocab}.",
                    "prompt",
                )
        self.request, self.target = request, target
        self.policy, self.vocabulary = policy, vocabulary
        self._tell = Provenance(vocabulary, request.logprobs)
        self.context = list(request.prompt)
        self._cached = self._draft_cached = self._drafted = self._accepted = 0
        self.reason: FinishReason | None = None
        limit = n_ctx - len(request.prompt)
        self._limit = limit if request.max_tokens is None else min(limit, request.max_tokens)
        self._text = TextStream(request.stops)
        self._ready: list[Token] = []  # tokens of this round whose text is certain
        self._emitted = 0
        self._rounds = 0
        # Two streams, so that under `match` the answer does not depend on the draft.
        seeds = np.random.SeedSequence(request.chain.params.seed).spawn(2)
        self._rng, self._draft_rng = (np.random.default_rng(s) for s in seeds)

    def run(self) -> Steps:
        """Yields Evaluate requests and events, at last a Finish. Always leaves the caches
        holding nothing but a beginning of `context`.
        """
        start = perf_counter()
        started = start
        try:
            yield from self._prefill()
            started = perf_counter()
            if self._limit <= 0:
                self.reason = FinishReason.LENGTH
            while self.reason is None:
                if self.request.cancelled():
                    raise Cancelled("The answer was stopped.")
                yield from self._round()
        except Cancelled:
            self.reason = FinishReason.CANCELLED
        finally:
            self._rewind()
            if self.request.grammar:
                self.request.grammar.close()
        yield from self._text.finish()
        assert self.reason is not None
        now = perf_counter()
        yield Finish(self.reason, self.usage, started - start, now - started, self._text.stopped)

    def _prefill(self) -> Steps:
        """Evaluate the prompt but for its last token, which the first round evaluates."""
        prompt = self.context
        cached = reuse(self.target, prompt)
        self.policy.begin(prompt)
        drafts = [drafter.begin(prompt) for drafter in self.policy.drafters]
        self._cached, self._draft_cached = cached, max(drafts, default=0)
        yield Prefill(cached, len(prompt), cached)
        for chunk in missing_chunks(self.target, prompt):
            if self.request.cancelled():
                raise Cancelled("The answer was stopped.")
            depth, start = len(self.target.tokens), perf_counter()
            yield Evaluate(self.target, chunk, 0)
            read = len(self.target.tokens) - depth
            self.policy.prefilled(read, depth, perf_counter() - start)
            yield Prefill(len(self.target.tokens), len(prompt), cached)
        for drafter in self.policy.drafters:
            if self.policy.wants(drafter):
                yield from drafter.catch_up(prompt)
        yield from self.policy.calibrate(self.target)

    def _round(self) -> Steps:
        """One round: plan, draft, verify, judge, roll back."""
        clock = [perf_counter()]
        depth = len(self.context) - 1
        plan = self.policy.plan(self.context, self._limit - self._emitted - 1)
        proposed = yield from self._draft(plan)
        draft = Draft() if plan.shadow else proposed
        clock.append(perf_counter())

        pending = self.context[len(self.target.tokens) :]
        rows = yield Evaluate(self.target, pending + draft.tokens, len(draft.tokens) + 1)
        clock.append(perf_counter())

        self._ready.clear()
        tokens, chances = self._judge(rows, draft)
        if plan.shadow:
            chances = self._shadow_chances(rows, depth, proposed)
        clock.append(perf_counter())

        self._rewind()
        clock.append(perf_counter())
        outcome = self._tell.round(self._rounds, plan, draft, tokens, depth, clock)
        self._rounds += 1
        self._drafted += outcome.draft_length
        self._accepted += outcome.accepted
        self.policy.observe(Outcome(plan, proposed, chances, outcome))
        yield from self._ready
        yield outcome

    def _draft(self, plan: Plan) -> Generator[Evaluate, Logits, Draft]:
        if plan.drafter is None or plan.length < 1:
            return Draft()
        request = self.request
        return (
            yield from plan.drafter.propose(
                DraftRequest(
                    context=self.context,
                    recent=request.chain.recent(self.context),
                    length=plan.length,
                    chain=request.chain,
                    worth=plan.worth,
                    rng=self._draft_rng,
                    is_eog=self.vocabulary.is_eog,
                    grammar=request.grammar,
                    alternatives=self._tell.alternatives if request.logprobs else None,
                )
            )
        )

    def _judge(self, rows: Logits, draft: Draft) -> tuple[list[Token], list[float]]:
        """Accept draft tokens while the rule keeps them, then add one of the target's own.

        `rows[i]` are the target's logits for draft position i, `rows[-1]` those after the
        whole draft. Returns the tokens emitted and the acceptance chances of those judged.
        """
        request = self.request
        recent = request.chain.recent(self.context)
        tokens: list[Token] = []
        chances: list[float] = []
        for i, proposed in enumerate(draft.tokens):
            p, q = request.chain.distribution(rows[i], recent, request.grammar), draft.dists[i]
            verdict = request.rule.judge(p, proposed, q, self._rng)
            chances.append(verdict.acceptance)
            token = self._tell.token(
                verdict.token,
                Kind.ACCEPTED if verdict.accepted else Kind.RESAMPLED,
                self._rounds,
                p,
                rows[i],
                q=q.p(verdict.token),
                acceptance=verdict.acceptance,
                rejected=None if verdict.accepted else self._tell.rejected(proposed, p, q),
                draft_alternatives=draft.alternatives[i] if draft.alternatives else (),
            )
            tokens.append(token)
            recent.append(token.id)
            self._emit(token)
            if not verdict.accepted or self.reason is not None:
                return tokens, chances
        p = request.chain.distribution(rows[-1], recent, request.grammar)
        kind = Kind.BONUS if draft.tokens else Kind.PLAIN
        token = self._tell.token(p.draw(self._rng.random()), kind, self._rounds, p, rows[-1])
        self._emit(token)
        return [*tokens, token], chances

    def _shadow_chances(self, rows: Logits, depth: int, draft: Draft) -> list[float]:
        """The chance that a draft from the same context would have been accepted."""
        chain, context = self.request.chain, self.context[: depth + 1]
        p = chain.distribution(rows[0], chain.recent(context))
        return [self.request.rule.expected(p, q) for q in draft.dists[:1]]

    def _emit(self, token: Token) -> None:
        """Append to the context and the text; note whether the answer ends here."""
        self.context.append(token.id)
        self._emitted += 1
        if self.request.grammar:
            self.request.grammar.accept(token.id)
        self._ready += self._text.push(token, self.vocabulary.piece(token.id))
        if self.vocabulary.is_eog(token.id) or self._text.stopped is not None:
            self.reason = FinishReason.STOP
        elif self._emitted >= self._limit:
            self.reason = FinishReason.LENGTH

    def _rewind(self) -> None:
        """Roll the caches back to what was kept. The newest token is in none of them."""
        length = len(self.context) - 1
        self.target.truncate(min(length, len(self.target.tokens)))
        for drafter in self.policy.drafters:
            drafter.rewind(length)

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self._cached,
            draft_cached_tokens=self._draft_cached,
            completion_tokens=self._emitted,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
            target_calls=self._rounds,
        )
