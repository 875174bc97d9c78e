"""`exact` and `match` change nothing: whatever the draft, the answer follows the target's own
distribution after the sampler chain. And the tests that say so can see a broken rule.

The same on models in llama.cpp is in test_losslessness_gguf.py; how it is judged, and how
often it would err, in losslessness.py.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from losslessness import (
    PENALTIES,
    RULES,
    RUNS,
    THRESHOLD,
    AcceptAlways,
    AcceptWithP,
    RedrawnMatch,
    ResidualIsP,
    answer,
    class_name,
    joint,
    lossless_p_value,
    p_value,
    params,
    sample,
)

from specchat.engine.drafters import LookupDrafter, ModelDrafter, Step
from specchat.engine.events import Kind
from specchat.engine.policy import FixedLength, Plan
from specchat.engine.rules import Exact, Match, Typical
from specchat.engine.sampling import Chain
from specchat.engine.synthetic import (
    Alphabet,
    N,
    TableCache,
    TableModel,
    random_table,
)

TARGET = random_table(1)
OTHER = random_table(2)
# Softmax of the negated logits, sharpened: what the target likes least.
TERRIBLE = TARGET**-3 / (TARGET**-3).sum(axis=1, keepdims=True)
DRAFTS = {
    "terrible": TERRIBLE,
    "equal": TARGET,
    "near": 0.7 * TARGET + 0.3 * OTHER,
}
PROMPT = [3, 1, 4, 1, 5]  # a repetition, for the penalties to see


CHAINS = {
    "neutral": params(),
    "cold": params(temperature=0.7),
    "hot": params(temperature=1.5),
    "top-k": params(top_k=4),
    "top-p": params(top_p=0.8),
    "min-p": params(min_p=0.1),
    "penalties": params(**PENALTIES),
    "bias": params(logit_bias={2: 1.5, 7: -np.inf}),
    "all": params(
        temperature=0.8, top_k=6, top_p=0.9, min_p=0.05, logit_bias={2: 1.0}, **PENALTIES
    ),
}
# Every draft with every chain under `exact`; the lengths take turns so that each meets each
# of both. `match` is compared with plain decoding token by token as well (below), so here
# it meets every chain once.
GRID = [
    ("exact", chain, draft, (1, 2, 4)[(i + j) % 3])
    for (i, chain), (j, draft) in product(enumerate(CHAINS), enumerate(DRAFTS))
] + [("match", chain, tuple(DRAFTS)[i % 3], (4, 1, 2)[i // 3]) for i, chain in enumerate(CHAINS)]


def table(model_table):
    return TableCache(TableModel(model_table))


def model_policy(draft, length):
    return FixedLength([ModelDrafter(table(draft), N)], length)


def compare(policy, prompt, sampling, rule, chain=Chain, target=None, runs=RUNS):
    """The p-value of what comes out against the target's own distribution."""
    counts = sample(
        target or table(TARGET), policy, Alphabet(), prompt, sampling, rule, runs, chain
    )
    return lossless_p_value(counts, joint(table(TARGET), prompt, sampling))


# -- the answer follows the target ---------------------------------------------------------


@pytest.mark.parametrize(("rule", "chain", "draft", "length"), GRID)
def test_first_three_tokens(rule, chain, draft, length):
    policy = model_policy(DRAFTS[draft], length)
    assert compare(policy, PROMPT, CHAINS[chain], RULES[rule]) > THRESHOLD


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", ["neutral", "all"])
def test_lookup(rule, chain):
    """The prompt makes the lookup propose 4, 1, 5, 3."""
    policy = FixedLength([LookupDrafter()], 4)
    assert compare(policy, [*PROMPT, 3, 1], CHAINS[chain], RULES[rule]) > THRESHOLD


class Hesitant(FixedLength):
    """Stops drafting where the draft is unsure, and drafts less after a refusal: a policy
    may look at everything but the token not yet drawn.
    """

    refused = False

    def plan(self, context, room):
        plan = super().plan(context, room)
        return Plan(plan.drafter, 1 if self.refused else plan.length, "", self._worth)

    def _worth(self, drafted, confidence):
        return (Step.STOP if drafted else Step.LAST) if confidence < 0.4 else Step.MORE

    def observe(self, outcome):
        self.refused = outcome.round.accepted < outcome.round.draft_length


@pytest.mark.parametrize("rule", RULES)
def test_adaptive_draft_length(rule):
    policy = Hesitant([ModelDrafter(table(DRAFTS["near"]), N)], 4)
    assert compare(policy, PROMPT, CHAINS["all"], RULES[rule]) > THRESHOLD


def transitions(policy, rule, target=None, tokens=6000):
    """p-value of the letter pairs in one long answer: given a letter, the next ones are
    independent draws from its row.
    """
    emitted = answer(target or table(TARGET), policy, Alphabet(), [0], params(seed=1), rule, tokens)
    pairs = Counter(pairwise([0, *(token.id for token in emitted)]))
    share = np.array([sum(pairs[a, b] for b in range(N)) for a in range(N)]) / tokens
    exact = {(a, b): share[a] * TARGET[a, b] for a in range(N) for b in range(N)}
    return p_value(pairs, exact)


@pytest.mark.parametrize(
    ("rule", "drafter"),
    [("exact", "model"), ("exact", "lookup"), ("exact", "both"), ("match", "both")],
)
def test_a_long_answer(rule, drafter):
    """Every position of a draft and the bonus token, at draft length 4."""
    model, lookup = ModelDrafter(table(DRAFTS["near"]), N), LookupDrafter()
    drafters = {"model": [model], "lookup": [lookup], "both": [lookup, model]}[drafter]
    assert transitions(FixedLength(drafters, 4, min_match=3), RULES[rule]) > THRESHOLD


# -- the same tests notice a broken rule ---------------------------------------------------


class BonusFromDraft(TableModel):
    """A target that answers a draft's last position with the draft's own logits."""

    def __init__(self, target, draft):
        super().__init__(target)
        self._draft = TableModel(draft)

    def evaluate(self, requests):
        rows = super().evaluate(requests)
        for row, request in zip(rows, requests, strict=True):
            if request.outputs > 1:
                row[-1] = self._draft._logits[request.cache.tokens[-1]]
        return rows


class Forgetful(Chain):
    """Penalties that do not see the tokens drafted before, only the context of the round."""

    def recent(self, context):
        return Deaf(super().recent(context))


class Deaf(list):
    def append(self, item):
        pass


BROKEN = [AcceptAlways(), AcceptWithP(), ResidualIsP(), RedrawnMatch(), Typical(0.5)]


by_class = pytest.mark.parametrize("rule", BROKEN, ids=class_name)


@pytest.mark.parametrize("chain", ["neutral", "all"])
@by_class
def test_first_three_tokens_show_a_broken_rule(rule, chain):
    p = compare(model_policy(OTHER, 2), PROMPT, CHAINS[chain], rule, runs=2 * RUNS)
    assert p < THRESHOLD


@by_class
def test_a_long_answer_shows_a_broken_rule(rule):
    assert transitions(model_policy(OTHER, 4), rule) < THRESHOLD


@pytest.mark.parametrize(("length", "runs"), [(1, RUNS), (2, 4 * RUNS)])
def test_bonus_from_the_draft_is_noticed(length, runs):
    target = TableCache(BonusFromDraft(TARGET, OTHER))
    p = compare(model_policy(OTHER, length), PROMPT, params(), Exact(), target=target, runs=runs)
    assert p < THRESHOLD


def test_penalties_that_miss_drafted_tokens_are_noticed():
    policy = model_policy(TARGET, 4)
    assert compare(policy, PROMPT, CHAINS["penalties"], Exact(), Forgetful) < THRESHOLD


@pytest.mark.parametrize("rule", RULES)
def test_the_right_rules_pass_where_the_broken_ones_fail(rule):
    for chain in ("neutral", "all"):
        p = compare(model_policy(OTHER, 2), PROMPT, CHAINS[chain], RULES[rule], runs=2 * RUNS)
        assert p > THRESHOLD
    assert transitions(model_policy(OTHER, 4), RULES[rule]) > THRESHOLD


# -- equalities that need no statistics ----------------------------------------------------


def ids(policy, sampling, rule, target=TARGET, tokens=60):
    emitted = answer(table(target), policy, Alphabet(), PROMPT, sampling, rule, tokens)
    return [token.id for token in emitted]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("draft", DRAFTS)
def test_temperature_0_gives_the_plain_answer(rule, draft):
    for changes, length, seed in product(({}, PENALTIES), (1, 2, 4), range(5)):
        target = random_table(seed)
        sampling = params(temperature=0.0, **changes)
        plain = ids(FixedLength([], 0), sampling, RULES[rule], target)
        assert ids(model_policy(DRAFTS[draft], length), sampling, RULES[rule], target) == plain
        assert ids(FixedLength([LookupDrafter()], length), sampling, RULES[rule], target) == plain


@pytest.mark.parametrize("chain", CHAINS)
def test_match_gives_the_plain_answer_of_its_seed(chain):
    for seed in range(5):
        sampling = replace(CHAINS[chain], seed=seed)
        plain = ids(FixedLength([], 0), sampling, Match())
        for draft, length in product(DRAFTS.values(), (1, 2, 4)):
            assert ids(model_policy(draft, length), sampling, Match()) == plain
        assert ids(FixedLength([LookupDrafter()], 4), sampling, Match()) == plain


@pytest.mark.parametrize("chain", CHAINS)
def test_exact_accepts_everything_from_an_equal_draft(chain):
    emitted = answer(
        table(TARGET), model_policy(TARGET, 4), Alphabet(), PROMPT, CHAINS[chain], Exact(), 100
    )
    assert [token.kind for token in emitted] == ([Kind.ACCEPTED] * 4 + [Kind.BONUS]) * 20
    assert all(token.acceptance == 1.0 for token in emitted if token.kind is Kind.ACCEPTED)


def test_a_nearly_disjoint_draft_is_nearly_always_refused():
    """So `terrible` above really is, and the residual carries the answer."""
    emitted = answer(
        table(TARGET), model_policy(TERRIBLE, 1), Alphabet(), PROMPT, params(seed=1), Exact(), 1000
    )
    assert sum(token.kind is Kind.RESAMPLED for token in emitted) > 900
