"""The sampler chain against llama.cpp's own, and its shortcuts against the long way round."""

import ctypes
import math
from dataclasses import replace

import llama_cpp.llama_cpp as C
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine import sampling
from specchat.engine.sampling import (
    Chain,
    Dist,
    SamplingParams,
    largest,
    log_softmax_denominator,
    one_hot,
)
from specchat.errors import BadRequestError, DecodeError, GrammarError

NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SIZES = st.sampled_from([10, 37, 128, 300, 1000, 5000, 50_000])


@st.composite
def rows(draw, sizes=SIZES):
    """Logits like a model's, or with many ties, and some of them -inf."""
    n = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = rng.normal(scale=draw(st.sampled_from([0.1, 1.0, 3.0, 8.0])), size=n)
    if draw(st.booleans()):
        row = np.round(row)
    row[rng.random(n) < draw(st.sampled_from([0.0, 0.0, 0.3, 0.97]))] = -np.inf
    row[rng.integers(n)] = 1.0  # at least one token is possible
    return row.astype(np.float32)


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.05, 0.3, 0.8, 1.0, 1.7, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 200, 100_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.3, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.1, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.0, -0.5, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.2, 0.4]),
    penalty_last_n=st.sampled_from([0, 1, 8, 64]),
    logit_bias=st.dictionaries(
        st.integers(0, 9), st.sampled_from([-math.inf, -2.5, 0.5, 4.0]), max_size=3
    ),
)


def llama_chain(p, n_vocab, row, context):
    """Ids and logits (after temperature) that llama.cpp's own samplers leave."""
    biases = (C.llama_logit_bias * max(1, len(p.logit_bias)))()
    for place, (token, bias) in zip(biases, p.logit_bias.items(), strict=False):
        place.token, place.bias = token, bias
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    penalties = C.llama_sampler_init_penalties(
        n_vocab, p.penalty_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    )
    for sampler in (
        C.llama_sampler_init_logit_bias(n_vocab, len(p.logit_bias), biases),
        penalties,
        C.llama_sampler_init_top_k(p.top_k),
        C.llama_sampler_init_top_p(p.top_p, 1),
        C.llama_sampler_init_min_p(p.min_p, 1),
        C.llama_sampler_init_temp(p.temperature),
    ):
        C.llama_sampler_chain_add(chain, sampler)
    for token in context:
        C.llama_sampler_accept(chain, token)
    data = np.zeros(n_vocab, dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
    data["id"], data["logit"] = np.arange(n_vocab), row
    array = C.llama_token_data_array(
        data=data.ctypes.data_as(C.llama_token_data_p), size=n_vocab, selected=-1, sorted=False
    )
    C.llama_sampler_apply(chain, ctypes.byref(array))
    C.llama_sampler_free(chain)
    kept = data[: array.size]
    return kept["id"].copy(), kept["logit"].astype(np.float64)


def near_cut(p, row, kept, other):
    """Whether top-p or min-p cuts between `kept` and `other` candidates within rounding."""
    values = np.sort(row.astype(np.float64))[::-1]
    values = values[: p.top_k or None] - values[0]
    mass = np.cumsum(np.exp(values)) / np.exp(values).sum()
    low, high = sorted((kept, other))
    rounding = 1e-6 + 6e-8 * high  # llama.cpp adds up float32 probabilities one by one
    by_mass = np.abs(mass[low - 1 : high] - p.top_p).min() < rounding
    by_floor = p.min_p > 0 and np.abs(values[low - 1 : high] - math.log(p.min_p)).min() < 1e-5
    return by_mass or by_floor


@given(rows(), params, st.lists(st.integers(0, 9), max_size=20))
def test_chain_equals_llama_cpp(row, p, context):
    before = row.copy()
    chain = Chain(p, len(row))
    adjusted = chain._adjusted(row, context)
    if not np.isfinite(adjusted.max()):
        with pytest.raises(DecodeError):
            chain.distribution(row, context)
        return
    dist = chain.distribution(row, context)
    assert np.array_equal(row, before)
    assert len(set(dist.ids.tolist())) == len(dist.ids)
    assert dist.probs.sum() == pytest.approx(1.0)

    ids, logits = llama_chain(p, len(row), row, context)
    probs = np.exp(logits - logits.max())
    ids, probs = ids[probs > 0], probs[probs > 0] / probs.sum()
    mine = dist.ids[dist.probs > 0], dist.probs[dist.probs > 0]
    if len(ids) != len(mine[0]):
        tiny = min(probs.min(), mine[1].min()) < 1e-30  # a float32 exp that came out as zero
        assert tiny or near_cut(p, adjusted, len(ids), len(mine[0]))
        return
    assert np.allclose(np.sort(probs), np.sort(mine[1]), rtol=3e-4, atol=1e-9)
    # Which of the tokens tied at a cut is kept is arbitrary; all better ones must agree.
    lowest = adjusted[ids].min() + 1e-5
    assert set(ids[adjusted[ids] > lowest]) == set(mine[0][adjusted[mine[0]] > lowest])


@given(rows(), st.lists(st.integers(0, 9), max_size=20), params)
def test_temperature_zero_takes_the_best_adjusted_logit(row, context, p):
    chain = Chain(replace(p, temperature=0.0), len(row))
    adjusted = chain._adjusted(row, context)
    if np.isfinite(adjusted.max()):
        dist = chain.distribution(row, context)
        assert dist.ids.tolist() == [int(adjusted.argmax())]
        assert dist.probs.tolist() == [1.0]


def test_a_tiny_temperature_is_greedy():
    row = np.array([1.0, 300.0, 299.999], np.float32)
    assert Chain(SamplingParams(temperature=5e-324), 3).distribution(row, []).ids.tolist() == [1]


@given(rows(), st.integers(1, 300))
def test_largest_equals_a_full_sort(row, k):
    order = np.argsort(-row, kind="stable")[:k]
    assert largest(row, k).tolist() == order.tolist()


# -- constraints -----------------------------------------------------------------------


class Only:
    """A constraint that allows a fixed set; counts the ids it was asked about."""

    def __init__(self, mask):
        self.mask = mask
        self.asked = 0

    def allowed(self, ids):
        self.asked += len(ids)
        return self.mask[ids]


@st.composite
def plateaus(draw):
    """Logits on a few levels, so that many bad tokens weigh as much as the few good ones."""
    n = draw(st.integers(1, 400))
    levels = draw(st.lists(st.floats(-6.0, 0.0), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return (rng.choice(levels, n) + rng.normal(scale=0.01, size=n)).astype(np.float32)


@settings(max_examples=1500)
@given(
    st.one_of(rows(st.sampled_from([10, 37, 300])), plateaus()),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.sampled_from([0, 2, 12, 60, 1000]),
    st.sampled_from([0.5, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 0.05, 0.2, 0.5]),
    st.sampled_from([0.02, 0.3, 0.9, 1.0]),
    st.integers(0, 2**32),
)
def test_constrained_equals_masking_the_whole_vocabulary(
    row, temperature, top_k, top_p, min_p, share, seed
):
    p = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    mask = np.random.default_rng(seed).random(len(row)) < share
    masked = np.where(mask, row, -np.inf).astype(np.float32)
    chain = Chain(p, len(row))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_POOL", 16)  # so that small vocabularies do not fit
        if not np.isfinite(masked).any():
            with pytest.raises(GrammarError, match="allows no token"):
                chain.distribution(row, [], Only(mask))
            return
        got = chain.distribution(row, [], Only(mask))
    expected = chain.distribution(masked, [])
    wanted = {t: x for t, x in zip(expected.ids, expected.probs, strict=True) if x > 0.0}
    found = {t: x for t, x in zip(got.ids, got.probs, strict=True) if x > 0.0}
    assert found.keys() == wanted.keys()
    for token, prob in wanted.items():
        assert found[token] == pytest.approx(prob, rel=1e-9)


def test_the_pool_spares_the_grammar_the_whole_vocabulary():
    row = np.random.default_rng(0).normal(scale=6.0, size=50_000).astype(np.float32)
    for p in (SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_k=0)):
        some = Only(np.ones(50_000, bool))
        Chain(p, 50_000).distribution(row, [], some)
        assert some.asked == 256
    rare = Only(row < -5.0)
    Chain(SamplingParams(), 50_000).distribution(row, [], rare)
    assert rare.asked == 256 + 50_000


# -- distributions ---------------------------------------------------------------------


@st.composite
def dists(draw):
    chosen = draw(st.lists(st.integers(0, 12), min_size=1, max_size=10, unique=True))
    weights = draw(st.lists(st.integers(0, 20), min_size=len(chosen), max_size=len(chosen)))
    weights = np.array(weights, float)
    if not weights.any():
        weights[0] = 1.0
    return Dist(np.array(chosen, np.int32), weights / weights.sum())


@given(dists(), dists())
def test_minus_is_the_normalised_positive_part(p, q):
    rest = {int(i): max(0.0, p.p(int(i)) - q.p(int(i))) for i in p.ids}
    total = sum(rest.values())
    result = p.minus(q)
    if total == 0.0:
        assert result is p
        return
    assert result.probs.sum() == pytest.approx(1.0)
    assert (result.probs > 0).all()
    for token, value in rest.items():
        assert result.p(token) == pytest.approx(value / total)


@given(dists(), st.floats(0.0, 1.0, exclude_max=True))
def test_draw_is_the_quantile(dist, u):
    token = dist.draw(u)
    place = dist.ids.tolist().index(token)
    assert dist.probs[place] > 0.0
    below = dist.probs[:place].sum()
    assert below - 1e-12 <= u <= below + dist.probs[place] + 1e-12


def test_draws_follow_the_probabilities():
    dist = Dist(np.array([5, 2, 9], np.int32), np.array([0.5, 0.3, 0.2]))
    drawn = [dist.draw(u) for u in (np.arange(1000) + 0.5) / 1000]
    assert [drawn.count(t) for t in (5, 2, 9)] == [500, 300, 200]
    assert dist.best == 5
    assert dist.max == 0.5
    assert dist.p(4) == 0.0
    assert one_hot(7).draw(0.999) == 7


def test_log_softmax_denominator_does_not_overflow():
    row = np.array([1e4, 1e4 - 1.0, -1e4], np.float32)
    assert log_softmax_denominator(row) == pytest.approx(1e4 + math.log(1 + math.exp(-1)))


# -- draft distributions ---------------------------------------------------------------


def test_draft_confidence_is_the_probability_of_the_best():
    row = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    dist, confidence = Chain(SamplingParams(**NEUTRAL), 3).draft_distribution(row, [])
    assert dist.max == confidence == pytest.approx(0.6)
    dist, confidence = Chain(SamplingParams(temperature=0.0), 3).draft_distribution(row, [])
    assert dist.ids.tolist() == [1]
    assert confidence == pytest.approx(0.6)


# -- penalties and limits --------------------------------------------------------------


def test_recent_is_the_penalty_window():
    assert Chain(SamplingParams(), 10).recent([1, 2, 3]) == []
    chain = Chain(SamplingParams(presence_penalty=1.0, penalty_last_n=2), 10)
    assert chain.recent([1, 2, 3]) == [2, 3]
    context = [1, 2, 3]
    chain.recent(context).append(9)
    assert context == [1, 2, 3]


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize(
    "p", [{}, {"temperature": 0.0}, {"top_k": 0}, {"top_k": 5000}, NEUTRAL], ids=str
)
@pytest.mark.parametrize("where", [slice(0, 1), slice(7, 900), slice(None)])
@pytest.mark.parametrize("grammar", [None, Only(np.ones(20_000, bool))], ids=["", "grammar"])
def test_logits_that_are_not_numbers_are_reported(broken, p, where, grammar):
    row = np.zeros(20_000, np.float32)
    row[where] = broken
    with pytest.raises(DecodeError, match="not numbers"):
        Chain(SamplingParams(**p), len(row)).distribution(row, [], grammar)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("repeat_penalty", 0.0),
        ("presence_penalty", 101.0),
        ("frequency_penalty", math.nan),
        ("penalty_last_n", -1),
    ],
)
def test_out_of_range_names_the_parameter(name, value):
    with pytest.raises(BadRequestError, match=f"{name} must be between .* not {value}") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("bias", [{-1: 1.0}, {1: math.nan}, {1: math.inf}, {1: 1e39}])
def test_unusable_logit_bias(bias):
    with pytest.raises(BadRequestError, match="logit_bias") as caught:
        SamplingParams(logit_bias=bias)
    assert caught.value.param == "logit_bias"


def test_logit_bias_beyond_the_vocabulary():
    with pytest.raises(BadRequestError, match="names token 10; this model has 10"):
        Chain(SamplingParams(logit_bias={10: 1.0}), 10)
