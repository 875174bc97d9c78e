"""Drafters: what prompt lookup proposes, and how far."""

import numpy as np
import pytest
from engine_fixtures import finish
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.drafters import DraftRequest, LookupDrafter, ModelDrafter, Step
from specchat.engine.policy import PLAIN, FixedLength
from specchat.engine.sampling import Chain, SamplingParams
from specchat.engine.synthetic import N, TableCache, TableModel, random_table

contexts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def request(context, length=5, worth=lambda n, c: Step.MORE, grammar=None, eog=()):
    return DraftRequest(
        context=context,
        recent=[],
        length=length,
        chain=Chain(SamplingParams(temperature=0.0), N),
        worth=worth,
        rng=np.random.default_rng(0),
        is_eog=lambda token: token in eog,
        grammar=grammar,
    )


def propose(drafter, context, **settings):
    return finish(drafter.propose(request(context, **settings)))


def begun(context, corpus=()):
    drafter = LookupDrafter(corpus)
    drafter.begin(context)
    return drafter


def naive(text, drafter):
    """Compare the end of `text` with every earlier place by brute force: (place, length) of
    the longest match among the last `candidates` places, the later of equals.
    """
    n = drafter.ngram
    places = [i for i in range(n, len(text)) if text[i - n : i] == text[-n:]]
    best = (0, 0)
    for place in places[-drafter.candidates :]:
        length = 0
        while (
            length < min(place, drafter.longest) and text[place - 1 - length] == text[-1 - length]
        ):
            length += 1
        if length >= best[1]:
            best = (place, length)
    return best


# -- lookup ----------------------------------------------------------------------------


@given(contexts, st.integers(1, 8))
def test_lookup_equals_a_brute_force_search(context, length):
    drafter = begun(context)
    place, matched = naive(context, drafter)
    assert drafter.strength(context) == matched
    draft = propose(drafter, context, length=length)
    assert draft.tokens == (context[place : place + length] if matched else [])


@given(contexts, st.integers(1, 8))
def test_a_proposal_continues_an_earlier_occurrence_of_the_end(context, length):
    draft = propose(begun(context), context, length=length)
    assert len(draft.tokens) <= length
    assert len(draft.dists) == len(draft.confidences) == len(draft.tokens)
    if draft.tokens:
        whole = context[-2:] + draft.tokens
        starts = range(len(context) - len(whole) + 1)
        assert any(context[i : i + len(whole)] == whole for i in starts)
    for token, dist in zip(draft.tokens, draft.dists, strict=True):
        assert dist.p(token) == 1.0
    assert draft.confidences == sorted(draft.confidences)
    assert all(0.0 < c <= 1.0 for c in draft.confidences)


@given(contexts, st.data())
def test_growing_with_the_answer_equals_starting_anew(context, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(context)), min_size=1)))
    drafter = begun(context[: cuts[0]])
    for cut in [*cuts, len(context)]:
        part = context[:cut]
        expected = propose(begun(part), part)
        assert propose(drafter, part).tokens == expected.tokens
        assert drafter.strength(part) == begun(part).strength(part)
        drafter.rewind(cut - 1)


@given(contexts, contexts)
def test_a_corpus_is_searched_as_if_it_stood_before_the_prompt(corpus, context):
    whole = corpus + context
    drafter = begun(context, corpus)
    place, matched = naive(whole, drafter)
    assert drafter.strength(context) == matched
    assert propose(drafter, context).tokens == (whole[place : place + 5] if matched else [])
    drafter.begin([0, 1])  # the corpus stays for the next prompt
    assert drafter.strength([0, 1]) == naive([*corpus, 0, 1], drafter)[1]


def test_the_longest_match_wins_then_the_latest():
    #          the longer match         a later, shorter one
    context = [9, 1, 2, 3, 7, 0, 0, 5, 2, 3, 8, 0, 0, 9, 1, 2, 3]
    drafter = begun(context)
    assert drafter.strength(context) == 4
    assert propose(drafter, context, length=1).tokens == [7]
    context = [2, 3, 7, 0, 2, 3, 8, 0, 2, 3]
    assert propose(begun(context), context, length=1).tokens == [8]


def test_nothing_is_proposed_without_a_match():
    for context in ([1], [1, 2], [1, 2, 3, 4]):
        drafter = begun(context)
        assert drafter.strength(context) == 0
        assert propose(drafter, context).tokens == []


def test_an_end_of_generation_token_is_the_last():
    context = [1, 2, 3, 4, 5, 1, 2]
    assert propose(begun(context), context, eog={4}).tokens == [3, 4]


# -- how far ---------------------------------------------------------------------------


def model_drafter(context=(0,), seed=3):
    drafter = ModelDrafter(TableCache(TableModel(random_table(seed))), N)
    drafter.begin(context)
    return drafter


@pytest.mark.parametrize(
    ("answers", "tokens"),
    [
        ([Step.STOP], 0),
        ([Step.LAST], 1),
        ([Step.MORE, Step.MORE, Step.STOP], 2),
        ([Step.MORE, Step.LAST], 2),
        ([Step.MORE] * 9, 5),
    ],
)
@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_the_judge_decides_where_the_draft_ends(kind, answers, tokens):
    context = [1, 2, 3, 4, 5, 6, 7, 1, 2]
    drafter = begun(context) if kind == "lookup" else model_drafter(context)
    asked = []

    def worth(drafted, confidence):
        asked.append(drafted)
        assert 0.0 < confidence <= 1.0
        return answers[len(asked) - 1]

    draft = propose(drafter, context, worth=worth)
    assert len(draft.tokens) == len(draft.dists) == len(draft.confidences) == tokens
    assert asked == list(range(len(asked)))


def test_a_draft_model_stops_at_the_end_of_generation():
    best = random_table(3).argmax(axis=1)
    first = int(best[0])
    draft = propose(model_drafter(), [0], eog={int(best[first])})
    assert draft.tokens == [first, int(best[first])]


def test_a_draft_model_keeps_what_was_accepted():
    drafter = model_drafter()
    draft = propose(drafter, [0], length=4)
    assert drafter.cache.tokens == [0, *draft.tokens[:3]]
    context = [0, *draft.tokens[:2], 9]  # two accepted, the third replaced
    drafter.rewind(len(context) - 1)
    assert drafter.cache.tokens == context[:3]
    again = propose(drafter, context, length=2)
    assert again.calls == 2
    assert drafter.cache.tokens == [*context, again.tokens[0]]


class SmallTable(TableModel):
    n_ctx = 6


def test_a_draft_with_a_smaller_context_stops_in_time():
    drafter = ModelDrafter(TableCache(SmallTable(random_table(3))), N)
    context = [0, 1, 2, 3]
    drafter.begin(context)
    assert drafter.strength(context) == 1
    assert len(propose(drafter, context, length=5).tokens) == 2
    assert len(drafter.cache.tokens) <= 6
    assert drafter.strength([0] * 6) == 0
    assert list(drafter.catch_up([0] * 6)) == []


# -- with a grammar --------------------------------------------------------------------


class Ascending:
    """A grammar of tokens that only grow, by at most `step`. Counts clones left open."""

    open = 0

    def __init__(self, last=-1, step=3):
        self.last, self.step = last, step

    def allowed(self, ids):
        return (ids > self.last) & (ids <= self.last + self.step)

    def accept(self, token):
        assert self.allowed(np.array([token]))[0]
        self.last = token

    def clone(self):
        Ascending.open += 1
        return Ascending(self.last, self.step)

    def close(self):
        Ascending.open -= 1


@given(contexts, st.integers(-1, 2))
def test_lookup_proposes_only_what_the_grammar_allows(context, last):
    free = propose(begun(context), context).tokens
    held = propose(begun(context), context, grammar=Ascending(last)).tokens
    grammar, expected = Ascending(last), []
    for token in free:
        if not grammar.allowed(np.array([token]))[0]:
            break
        grammar.accept(token)
        expected.append(token)
    assert held == expected
    assert Ascending.open == 0


@given(st.integers(-1, 9), st.integers(0, 50))
def test_a_draft_model_proposes_only_what_the_grammar_allows(last, seed):
    grammar = Ascending(last)
    draft = propose(model_drafter(seed=seed), [0], length=8, grammar=grammar)
    check = Ascending(last)
    for token in draft.tokens:
        check.accept(token)
    # At 9 nothing can follow: the draft ends there, which is no error.
    assert len(draft.tokens) == 8 or check.last == 9
    assert grammar.last == last
    assert Ascending.open == 0


# -- several drafters, one fixed length ------------------------------------------------


def test_fixed_length_takes_lookup_where_its_match_is_long():
    lookup, model = LookupDrafter(), model_drafter()
    policy = FixedLength([lookup, model], 4)
    long = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    lookup.begin(long)
    assert policy.plan(long, 10).drafter is lookup
    short = [1, 2, 9, 3, 4, 1, 2]
    lookup.begin(short)
    assert policy.plan(short, 10).drafter is model
    assert FixedLength([lookup], 4).plan(short, 10).drafter is lookup
    none = [1, 2, 3]
    lookup.begin(none)
    assert FixedLength([lookup], 4).plan(none, 10) == PLAIN


@pytest.mark.parametrize(
    ("length", "room", "planned"), [(4, 10, 4), (4, 2, 2), (4, 0, 0), (0, 9, 0)]
)
def test_fixed_length_never_drafts_more_than_fits(length, room, planned):
    plan = FixedLength([model_drafter()], length).plan([0], room)
    assert plan.length == planned
    assert (plan.drafter is None) == (planned == 0)
