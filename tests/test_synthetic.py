"""The loop on probability tables does what the formulas say, and the formulas are right.

Every run has a fixed seed, so these tests always give the same answer. Thresholds are such
that a correct loop would fail any one of them with another seed less than once in 10⁵.
"""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chi2

from specchat.engine.events import Finish, Round, Token
from specchat.engine.model import Evaluate
from specchat.engine.rules import Exact, Match, Typical
from specchat.engine.sampling import Dist
from specchat.engine.synthetic import (
    LETTERS,
    Alphabet,
    N,
    TableCache,
    TableModel,
    align,
    predict,
    random_table,
    simulate,
    stationary,
)

RULES = [Exact(), Match(), Typical(0.5)]
TARGET = random_table(7)
SETTINGS = [(0.6, 4), (0.9, 2), (0.75, 6)]
RUNS = [
    (Exact(), 0.6, 4),
    (Exact(), 0.9, 2),
    (Match(), 0.75, 3),
    (Typical(0.5), 0.6, 4),
    (Typical(0.7), 0.75, 6),
]

named = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def dist(row):
    return Dist(np.arange(N, dtype=np.int32), row)


def run(rule, alignment, length, tokens=500, seed=11):
    """The emitted tokens and the rounds, without the last ones, which the limit cuts."""
    events = list(simulate(TARGET, align(TARGET, alignment), rule, length, tokens, seed))
    rounds = [e for e in events if isinstance(e, Round)][: -length - 1]
    emitted = [e for e in events if isinstance(e, Token)]
    return emitted, rounds


# -- tables and models -----------------------------------------------------------------


def test_align_mixes_the_best_letter_in():
    draft = align(TARGET, 0.75)
    assert np.allclose(draft.sum(axis=1), 1.0)
    best = TARGET.argmax(axis=1)
    rows = np.arange(N)
    assert np.allclose(draft[rows, best], 0.75 + 0.25 * TARGET[rows, best])
    assert np.array_equal(align(TARGET, 0.0), TARGET)
    assert np.array_equal(align(TARGET, 1.0), np.eye(N)[best])


def test_table_model_gives_the_row_of_each_token():
    cache = TableCache(TableModel(TARGET))
    rows = cache.model.evaluate([Evaluate(cache, [3, 1, 4], 2)])[0]
    assert rows.dtype == np.float32
    assert np.allclose(np.exp(rows), TARGET[[1, 4]])
    assert cache.model.evaluate([Evaluate(cache, [5], 0)])[0].shape == (0, N)
    cache.truncate(2)
    assert cache.tokens == [3, 1]


def test_alphabet_has_ten_letters_and_no_end():
    alphabet = Alphabet()
    assert b"".join(alphabet.piece(i) for i in range(N)).decode() == LETTERS
    assert not any(alphabet.is_eog(i) for i in range(N))


def test_impossible_letters_are_never_produced():
    target = np.triu(np.ones((N, N)), 1)
    target[-1, 0] = 1.0
    target /= target.sum(axis=1, keepdims=True)
    for rule in RULES:
        events = simulate(target, random_table(1), rule, 3, 500, 1)
        text = [0, *(e.id for e in events if isinstance(e, Token))]
        assert all(target[a, b] > 0 for a, b in pairwise(text))


# -- the formulas ----------------------------------------------------------------------


@named
def test_predicted_acceptance_is_what_the_rule_expects(rule):
    draft = align(TARGET, 0.6)
    expected = [rule.expected(dist(p), dist(q)) for p, q in zip(TARGET, draft, strict=True)]
    assert np.allclose(predict(rule, TARGET, draft, 3).acceptances, expected)


@named
def test_prediction_by_enumerating_every_round(rule):
    """The matrix formula against the sum over all drafts and all verdicts of a round."""
    draft, length = align(TARGET, 0.6), 2
    prediction = predict(rule, TARGET, draft, length)
    for start in range(N):
        calls = np.zeros(length + 1)
        for x in range(N):
            first = draft[start, x] * chance(rule, start, x, draft)
            calls[0] += draft[start, x] - first
            for y in range(N):
                second = draft[x, y] * chance(rule, x, y, draft)
                calls[1] += first * (draft[x, y] - second)
                calls[2] += first * second
        assert np.allclose(prediction.accepted[start], calls)


def chance(rule, context, token, draft):
    """P(accept) of one draft token, from the rules' definitions."""
    p, q = TARGET[context], draft[context]
    if rule.name == "exact":
        return min(1.0, p[token] / q[token])
    if rule.name == "match":
        return p[token]
    return float(p[token] >= rule.tau * p.max())


@pytest.mark.parametrize("rule", [Exact(), Match()], ids=lambda rule: rule.name)
@pytest.mark.parametrize(("alignment", "length"), SETTINGS)
def test_lossless_rules_are_predicted_to_keep_the_targets_stationary_distribution(
    rule, alignment, length
):
    prediction = predict(rule, TARGET, align(TARGET, alignment), length)
    assert np.allclose(prediction.output, stationary(TARGET))


def test_typical_is_predicted_to_leave_it():
    output = predict(Typical(0.5), TARGET, align(TARGET, 0.6), 4).output
    assert output.sum() == pytest.approx(1.0)
    assert np.abs(output - stationary(TARGET)).sum() > 0.05


def test_constant_acceptance_gives_the_textbook_formula():
    """With equal rows the acceptance a is one number, and 1 + Σ aⁱ is Leviathan's (1)."""
    target = np.tile(TARGET[0], (N, 1))
    draft = align(target, 0.75)
    a = np.minimum(target[0], draft[0]).sum()
    prediction = predict(Exact(), target, draft, 4)
    assert prediction.tokens_per_call == pytest.approx((1 - a**5) / (1 - a))


def test_length_zero_is_one_token_a_call():
    prediction = predict(Exact(), TARGET, align(TARGET, 0.6), 0)
    assert prediction.tokens_per_call == pytest.approx(1.0)
    assert prediction.acceptance is None
    *_, finish = simulate(TARGET, TARGET, Exact(), 0, 500, 1)
    assert isinstance(finish, Finish)
    assert (finish.usage.target_calls, finish.usage.drafted_tokens) == (500, 0)


# -- the loop against the formulas -----------------------------------------------------


@pytest.mark.parametrize(("rule", "alignment", "length"), RUNS, ids=lambda x: getattr(x, "name", x))
def test_loop_agrees_with_the_prediction(rule, alignment, length):
    """20,000 tokens: tok/call within 5 standard errors and 4 % of the prediction, and the
    number of accepted tokens distributed as predicted in every starting context.
    """
    emitted, rounds = run(rule, alignment, length, tokens=20_000)
    prediction = predict(rule, TARGET, align(TARGET, alignment), length)

    sizes = np.array([r.emitted for r in rounds], float)
    batches = sizes[: len(sizes) // 40 * 40].reshape(40, -1).mean(axis=1)
    error = batches.std(ddof=1) / np.sqrt(40)  # batch means: rounds are not independent
    assert abs(sizes.mean() - prediction.tokens_per_call) < 5 * error
    assert 5 * error < 0.04 * prediction.tokens_per_call

    drafted, accepted = (sum(getattr(r, n) for r in rounds) for n in ("draft_length", "accepted"))
    assert accepted / drafted == pytest.approx((sizes.mean() - 1) / length)

    # Given its starting context a round is independent of all before it.
    letters = [0, *(t.id for t in emitted)]
    counts = np.zeros((N, length + 1))
    for r in rounds:
        counts[letters[r.depth], r.accepted] += 1
    expected = counts.sum(axis=1, keepdims=True) * prediction.accepted
    assert goodness(counts, expected) > 1e-5

    starts = counts.sum(axis=1) / counts.sum()
    assert np.abs(starts - prediction.starts).max() < 0.03
    shares = np.bincount(letters[1:], minlength=N) / len(emitted)
    assert np.abs(shares - prediction.output).max() < 0.03


def goodness(counts, expected):
    """p-value of Pearson's test, row by row; cells expecting below 5 are pooled in a row."""
    statistic, freedom = 0.0, 0
    for seen, hoped in zip(counts, expected, strict=True):
        big = hoped >= 5
        seen, hoped = (np.append(v[big], v[~big].sum()) for v in (seen, hoped))
        used = hoped > 0
        if used.sum() > 1:
            statistic += (((seen - hoped) ** 2)[used] / hoped[used]).sum()
            freedom += used.sum() - 1
    return chi2.sf(statistic, freedom)


def test_the_comparison_is_tight_enough_to_tell_rules_apart():
    """The check above would notice a slightly different τ or alignment."""
    _, rounds = run(Typical(0.5), 0.6, 4, tokens=20_000)
    measured = np.mean([r.emitted for r in rounds])
    for other, alignment in ((Typical(0.4), 0.6), (Typical(0.5), 0.57)):
        predicted = predict(other, TARGET, align(TARGET, alignment), 4).tokens_per_call
        assert abs(measured - predicted) > 0.03


def test_same_seed_same_run_and_other_seed_other_run():
    first, again, other = (run(Exact(), 0.6, 4, seed=seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_text_and_caches_belong_to_the_tokens():
    emitted, rounds = run(Exact(), 0.6, 3)
    assert len(emitted) == 500
    assert all(token.text == LETTERS[token.id] for token in emitted)
    assert sum(r.emitted for r in rounds) < 500
    assert all(r.emitted == r.accepted + 1 for r in rounds)
