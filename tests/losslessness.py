"""What the losslessness tests share: exact joint distributions, counts of what the loop
emits, the goodness-of-fit test between them, and deliberately broken rules.

Every comparison is of counts over many seeds with exactly computed probabilities. All seeds
are fixed, so the outcome never varies; for fresh seeds the chance that any comparison fails
although the loop is right is below ERROR_RATE (Bonferroni), as far as the chi-square
approximation holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from specchat.engine.batch import drive
from specchat.engine.events import Token
from specchat.engine.loop import Generation, Request
from specchat.engine.model import Evaluate
from specchat.engine.rules import Exact, Match, Verdict
from specchat.engine.sampling import Chain, SamplingParams

ERROR_RATE = 1e-6
COMPARISONS = 100  # all tests together make fewer
THRESHOLD = ERROR_RATE / COMPARISONS
RUNS = 600
DEPTH = 3  # tokens of an answer whose joint distribution is compared
RULES = {"exact": Exact(), "match": Match()}


def params(**changes):
    """Neutral sampling but for `changes`."""
    return SamplingParams(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **changes})


PENALTIES = {
    "repeat_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.8,
    "penalty_last_n": 6,
}


def joint(cache, prompt, params, depth=DEPTH):
    """The exact distribution of the first tokens: {ids: probability}.

    The target is evaluated alone, one sequence after the other, and the chain applied.
    """
    model = cache.model
    chain = Chain(params, model.n_vocab)
    found = {(): 1.0}
    for _ in range(depth):
        longer = {}
        for ids, chance in found.items():
            context = [*prompt, *ids]
            cache.truncate(0)
            row = model.evaluate([Evaluate(cache, context, 1)])[0][0]
            dist = chain.distribution(row, context)
            for token, p in zip(dist.ids.tolist(), dist.probs.tolist(), strict=True):
                if p > 0.0:
                    longer[(*ids, token)] = chance * p
        found = longer
    cache.truncate(0)
    return found


def answer(cache, policy, vocabulary, prompt, params, rule, count, chain=Chain):
    """The first `count` tokens the loop emits; all drafts fit, none is cut by a limit."""
    longest = getattr(policy, "length", 0)
    request = Request(prompt, chain(params, cache.model.n_vocab), rule, count + longest)
    generation = Generation(request, cache, policy, vocabulary)
    tokens = []
    for event in drive(generation.run()):
        if isinstance(event, Token):
            tokens.append(event)
            if len(tokens) == count:
                break
    return tokens


def sample(cache, policy, vocabulary, prompt, params, rule, runs, chain=Chain, depth=DEPTH):
    """How often each beginning of an answer came out of `runs` generations: a Counter."""
    counts = Counter()
    for seed in range(runs):
        seeded = replace(params, seed=seed)
        tokens = answer(cache, policy, vocabulary, prompt, seeded, rule, depth, chain)
        counts[tuple(token.id for token in tokens)] += 1
    return counts


def lossless_p_value(counts, exact):
    """p-value of the joint counts of `sample` against `joint`: the first token alone, the
    first two and so on are tested too, for a fault shows best in few cells (Bonferroni).
    """
    depth = len(next(iter(exact)))
    return min(
        1.0,
        depth * min(p_value(*(_head(x, n) for x in (counts, exact))) for n in range(1, depth + 1)),
    )


def _head(weights, n):
    """The marginal of the first n tokens."""
    sums = Counter()
    for ids, weight in weights.items():
        sums[ids[:n]] += weight
    return sums


def p_value(counts, exact):
    """Pearson's test of counts {outcome: n} against probabilities {outcome: p}.

    Outcomes expected less than 8 times are pooled. An impossible outcome has p-value 0.
    """
    if set(counts) - set(exact):
        return 0.0
    runs = sum(counts.values())
    expected = np.array([runs * p for p in exact.values()])
    seen = np.array([counts[outcome] for outcome in exact])
    big = expected >= 8.0
    expected, seen = (np.append(v[big], v[~big].sum()) for v in (expected, seen))
    if 0.0 < expected[-1] < 8.0 and len(expected) > 2:  # too few in the pool: one more joins it
        least = expected[:-1].argmin()
        for v in (expected, seen):
            v[-1] += v[least]
        expected, seen = np.delete(expected, least), np.delete(seen, least)
    used = expected > 0.0
    if used.sum() < 2:
        return 1.0  # one possible outcome, and it is the one seen
    statistic = (((seen - expected) ** 2)[used] / expected[used]).sum()
    return float(chi2.sf(statistic, used.sum() - 1))


# -- broken rules


class AcceptAlways(Exact):
    def judge(self, p, token, q, rng):
        return Verdict(True, token, 1.0)


class AcceptWithP(Exact):
    """p in place of min(1, p/q)."""

    def judge(self, p, token, q, rng):
        if rng.random() < p.p(token):
            return Verdict(True, token, p.p(token))
        return Verdict(False, p.minus(q).draw(rng.random()), p.p(token))


class ResidualIsP(Exact):
    """A refused token is replaced from p, not from norm(max(0, p − q))."""

    def judge(self, p, token, q, rng):
        verdict = super().judge(p, token, q, rng)
        return verdict if verdict.accepted else Verdict(False, p.draw(rng.random()), 0.0)


class RedrawnMatch(Match):
    """Draws a second time where the first draw was not the draft's token."""

    def judge(self, p, token, q, rng):
        verdict = super().judge(p, token, q, rng)
        return verdict if verdict.accepted else Verdict(False, p.draw(rng.random()), 0.0)


def class_name(rule):
    return type(rule).__name__
