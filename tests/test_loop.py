"""The draft/verify loop on real models: what comes out, and what stays in the caches."""

import threading
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from engine_fixtures import (
    CONTEXT,
    GREEDY,
    NEAR_TIE,
    CountingCache,
    CountingModel,
    Run,
    Script,
    answer,
    assert_same_greedy,
    chat,
    check_caches,
    collect,
    margin,
    self_draft,
    start,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specchat.engine.batch import drive
from specchat.engine.drafters import LookupDrafter, ModelDrafter
from specchat.engine.events import FinishReason, Kind, Prefill
from specchat.engine.llama import LlamaModel, ModelOptions, quantize
from specchat.engine.model import Evaluate
from specchat.engine.rules import Exact, Match, Typical
from specchat.engine.sampling import SamplingParams
from specchat.errors import BadRequestError, PromptTooLongError

pytestmark = pytest.mark.model

STORY = "Write two sentences about a fox and a crow."
COPY = "Repeat this exactly: the quick brown fox jumps over the lazy dog, said the lazy dog."


@pytest.fixture(scope="module")
def plain(chat_model):
    """Greedy answers without a draft, by question, each made once."""
    done = {}

    def get(text, max_tokens=48):
        if (text, max_tokens) not in done:
            cache = chat_model.new_cache()
            prompt = chat(chat_model, text)
            done[text, max_tokens] = answer(cache, prompt, max_tokens=max_tokens, logprobs=2)
            chat_model.release(cache)
        return done[text, max_tokens]

    return get


# -- plain decoding --------------------------------------------------------------------


def test_plain_decoding_is_the_argmax_of_a_bare_loop(chat_model, borrow, plain):
    expected, cache = plain(STORY), borrow(chat_model)
    rows = chat_model.evaluate([Evaluate(cache, chat(chat_model, STORY), 1)])[0]
    for token in expected.tokens:
        best = int(rows[0].argmax())
        assert token.id == best or margin(token) < NEAR_TIE
        if token.id != best:
            break
        assert token.kind is Kind.PLAIN
        assert token.p == 1.0
        assert (token.q, token.acceptance, token.rejected) == (None, None, None)
        rows = chat_model.evaluate([Evaluate(cache, [best], 1)])[0]
    rounds = expected.rounds
    assert all((r.drafter, r.draft_length, r.emitted) == ("", 0, 1) for r in rounds)
    assert [r.depth for r in rounds] == list(
        range(plain(STORY).finish.usage.prompt_tokens - 1, rounds[-1].depth + 1)
    )


# -- speculation -----------------------------------------------------------------------


def test_a_target_that_drafts_for_itself_accepts_everything(chat_model, borrow, plain):
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    prompt = chat(chat_model, STORY)
    expected = plain(STORY, 45)
    run = answer(cache, prompt, drafter, length=4, max_tokens=45, logprobs=2)
    near_ties = [t for t in run.tokens if t.kind is Kind.RESAMPLED]
    assert all(margin(t) < NEAR_TIE for t in near_ties)
    if not near_ties:
        assert [r.accepted for r in run.rounds[:-1]] == [4] * 8
        assert run.finish.usage.target_calls == 9  # 45 tokens, five a call
    assert_same_greedy(expected, run)
    check_caches(run, cache, drafter.cache)


@pytest.mark.parametrize("question", [STORY, COPY, "List the numbers from one to ten."])
@pytest.mark.parametrize("kind", ["draft", "lookup", "both"])
def test_greedy_answers_do_not_depend_on_the_draft(
    chat_model, borrow, plain, question, kind, record_property
):
    cache = borrow(chat_model)
    drafters = [] if kind == "draft" else [LookupDrafter()]
    if kind != "lookup":
        drafters.append(self_draft(chat_model, borrow))
    run = answer(cache, chat(chat_model, question), *drafters, length=6, max_tokens=48)
    record_property("near_tie", assert_same_greedy(plain(question), run))
    check_caches(run, cache)


def test_greedy_answers_with_a_requantised_draft(chat_model, smollm2, borrow, plain, tmp_path):
    path = tmp_path / "q4_0.gguf"
    quantize(smollm2, path, "Q4_0")
    with LlamaModel.load(path, ModelOptions(n_ctx=CONTEXT, threads=1)) as small:
        drafter = ModelDrafter(small.new_cache(), chat_model.n_vocab)
        run = answer(borrow(chat_model), chat(chat_model, STORY), drafter, max_tokens=48)
    assert_same_greedy(plain(STORY), run)
    assert run.finish.usage.accepted_tokens > 0


def test_a_wrong_draft_changes_nothing(chat_model, borrow, plain):
    cache = borrow(chat_model)
    run = answer(cache, chat(chat_model, STORY), Script([7] * 200), max_tokens=24)
    assert [t.id for t in plain(STORY).tokens[:24]] == run.ids
    assert all(r.accepted == 0 and r.emitted == 1 for r in run.rounds)
    assert all(t.rejected.id == 7 for t in run.tokens[:-1])  # no draft fits before the last
    check_caches(run, cache)


def test_sampling_with_a_seed_repeats_itself(chat_model, borrow):
    params = SamplingParams(temperature=1.0, seed=5)
    prompt = chat(chat_model, STORY)
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    first = answer(cache, prompt, drafter, params=params, max_tokens=16)
    cache.truncate(0)
    drafter.cache.truncate(0)
    again = answer(cache, prompt, drafter, params=params, max_tokens=16)
    assert first.ids == again.ids
    other = answer(cache, prompt, drafter, params=replace(params, seed=6), max_tokens=16)
    assert first.ids != other.ids


# -- ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("with_draft", [False, True])
def test_end_of_generation_inside_a_draft(chat_model, borrow, with_draft):
    question = "Answer with the single word yes."
    cache = borrow(chat_model)
    prompt = chat(chat_model, question)
    first = answer(cache, prompt, max_tokens=100)
    assert first.finish.reason is FinishReason.STOP
    assert chat_model.tokenizer.is_eog(first.ids[-1])
    assert first.tokens[-1].text == ""
    check_caches(first, cache)
    cache.truncate(0)
    # The script goes on behind the end; the draft model stops there by itself.
    drafter = self_draft(chat_model, borrow) if with_draft else Script([*first.ids, 5, 6, 7, 8])
    for length in (3, 8):
        run = answer(cache, prompt, drafter, length=length, max_tokens=100)
        assert run.finish.reason is FinishReason.STOP
        assert run.ids == first.ids
        check_caches(run, cache)


def test_stop_string_inside_a_draft(chat_model, borrow, plain):
    whole = plain(STORY)
    text = whole.text
    at = len(text) // 2
    stop = text[at : at + 9]  # in all likelihood across tokens
    cache = borrow(chat_model)
    expected = text[: text.index(stop)]
    for drafter in (Script(whole.ids), self_draft(chat_model, borrow)):
        for length in (0, 2, 7):
            run = answer(
                cache, chat(chat_model, STORY), drafter, length=length, stops=["zzzz", stop]
            )
            assert run.text == expected
            assert (run.finish.reason, run.finish.stop) == (FinishReason.STOP, stop)
            check_caches(run, cache)
            # Nothing is evaluated for nothing: the context ends with the stop string's token.
            tail = "".join(chat_model.tokenizer.piece(t).decode() for t in run.answer)
            assert tail.startswith(expected + stop)
            assert run.finish.usage.completion_tokens == len(run.answer) <= len(run.ids) + 9


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6, 11])
def test_max_tokens_inside_a_draft(chat_model, borrow, plain, max_tokens):
    whole = plain(STORY)
    cache = borrow(chat_model)
    run = answer(cache, chat(chat_model, STORY), Script(whole.ids), max_tokens=max_tokens)
    assert run.ids == whole.ids[:max_tokens]
    assert run.finish.reason is FinishReason.LENGTH
    assert run.finish.usage.completion_tokens == max_tokens
    # No token is drafted that could not be emitted.
    assert run.finish.usage.drafted_tokens == max_tokens - run.finish.usage.target_calls
    check_caches(run, cache)


def test_max_tokens_zero_reads_the_prompt_and_ends(chat_model, borrow):
    cache = borrow(chat_model)
    run = answer(cache, chat(chat_model, STORY), max_tokens=0)
    assert (run.tokens, run.rounds) == ([], [])
    assert run.finish.reason is FinishReason.LENGTH
    assert run.finish.usage.completion_tokens == 0
    check_caches(run, cache)


def test_an_empty_prompt_is_refused(chat_model, borrow):
    with pytest.raises(BadRequestError, match="prompt is empty") as caught:
        start(borrow(chat_model), [])
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token", [-1, 49_152])
def test_a_prompt_with_unknown_tokens_is_refused(chat_model, borrow, token):
    with pytest.raises(BadRequestError, match=f"token {token}; this model has 49152") as caught:
        start(borrow(chat_model), [5, token, 6])
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("extra", [0, 1, 100])
def test_a_prompt_over_the_context_is_refused_with_the_numbers(chat_model, borrow, extra):
    with pytest.raises(
        PromptTooLongError, match=f"{CONTEXT + extra} tokens .* {CONTEXT}"
    ) as caught:
        start(borrow(chat_model), [5] * (CONTEXT + extra))
    assert (caught.value.prompt_tokens, caught.value.n_ctx) == (CONTEXT + extra, CONTEXT)


@pytest.mark.parametrize("free", [1, 2, 12])
def test_the_context_limit_ends_with_length(chat_model, borrow, free):
    eog = {t: -np.inf for t in range(chat_model.n_vocab) if chat_model.tokenizer.is_eog(t)}
    params = replace(GREEDY, logit_bias=eog)
    prompt = (chat(chat_model, STORY) * 40)[: CONTEXT - free]
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    run = answer(cache, prompt, drafter, length=5, params=params)
    assert run.finish.reason is FinishReason.LENGTH
    assert len(run.generation.context) == CONTEXT
    check_caches(run, cache, drafter.cache)


# -- interruption ----------------------------------------------------------------------


def test_cancelled_between_calls(chat_model, borrow):
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    stop = threading.Event()
    run = Run(
        start(cache, chat(chat_model, STORY), drafter, cancelled=stop.is_set, stops=["\x00never"])
    )
    for event in drive(run.generation.run()):
        collect(run, event)
        if len(run.rounds) == 3:
            stop.set()
    assert run.finish.reason is FinishReason.CANCELLED
    assert len(run.rounds) == 4  # the fourth was under way when the third was seen
    assert run.finish.usage.completion_tokens == sum(r.emitted for r in run.rounds)
    check_caches(run, cache, drafter.cache)


def test_cancelled_before_anything_runs(chat_model, borrow):
    cache = borrow(chat_model)
    run = answer(cache, chat(chat_model, STORY), cancelled=lambda: True)
    assert run.finish.reason is FinishReason.CANCELLED
    assert run.tokens == []
    check_caches(run, cache)


@pytest.mark.parametrize("when", ["prefill", "answer"])
def test_aborted_from_another_thread(chat_model, borrow, plain, when):
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    prompt = chat(chat_model, STORY)
    if when == "prefill":
        prompt = (prompt * 30)[: CONTEXT - 64]
    run = Run(start(cache, prompt, drafter))
    thread = threading.Timer(0.03, chat_model.abort)
    for event in drive(run.generation.run()):
        collect(run, event)
        if len(run.rounds if when == "answer" else run.prefills) == 1 and not thread.ident:
            thread.start()
    thread.join()
    assert run.finish.reason is FinishReason.CANCELLED
    check_caches(run, cache, drafter.cache)
    # The next answer on the same caches is what it would have been.
    chat_model.abort(False)
    run = answer(cache, chat(chat_model, STORY), drafter, max_tokens=12)
    assert_same_greedy_prefix(plain(STORY), run, 12)


def assert_same_greedy_prefix(plain, run, n):
    expected = [t.id for t in plain.tokens[:n]]
    if run.ids != expected:
        i = next(i for i, (a, b) in enumerate(zip(expected, run.ids, strict=False)) if a != b)
        assert margin(plain.tokens[i]) < NEAR_TIE


@pytest.mark.parametrize("after", [0, 1, 2, 7])
def test_the_consumer_walks_away(chat_model, borrow, plain, after):
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    run = Run(start(cache, chat(chat_model, STORY), drafter))
    events = drive(run.generation.run())
    for _ in range(after):
        collect(run, next(events))
    events.close()
    check_caches(run, cache, drafter.cache)
    again = answer(cache, chat(chat_model, STORY), drafter, max_tokens=12)
    assert_same_greedy_prefix(plain(STORY), again, 12)


# -- prefix reuse ----------------------------------------------------------------------


def test_the_next_turn_evaluates_only_what_is_new(chat_model, borrow):
    cache, drafter = borrow(chat_model), self_draft(chat_model, borrow)
    first = answer(cache, chat(chat_model, STORY), drafter, max_tokens=20)
    held, draft_held = len(cache.tokens), len(drafter.cache.tokens)
    assert held == len(first.generation.context) - 1
    turn = chat_model.tokenizer.tokenize(
        "<|im_end|>\n<|im_start|>user\nAnd a dog?<|im_end|>\n<|im_start|>assistant\n",
        parse_special=True,
    )
    prompt = [*first.generation.context, *turn]
    second = answer(cache, prompt, drafter, max_tokens=20, logprobs=2)
    assert second.finish.usage.cached_tokens == held
    assert second.finish.usage.draft_cached_tokens == draft_held
    assert second.prefills[0] == Prefill(held, len(prompt), held)
    fresh = answer(borrow(chat_model), prompt, max_tokens=20, logprobs=2)
    assert fresh.finish.usage.cached_tokens == 0
    assert_same_greedy(fresh, second)


def test_another_prompt_reuses_the_common_beginning(chat_model, borrow):
    cache = borrow(chat_model)
    one, other = chat(chat_model, "Tell me about Rome."), chat(chat_model, "Tell me about Oslo.")
    common = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    answer(cache, one, max_tokens=3)
    run = answer(cache, other, max_tokens=8, logprobs=2)
    assert run.finish.usage.cached_tokens == common
    assert_same_greedy(answer(borrow(chat_model), other, max_tokens=8, logprobs=2), run)
    # The same prompt once more: all but its last token.
    run = answer(cache, other, max_tokens=1)
    assert run.finish.usage.cached_tokens == len(other) - 1


# -- log-probabilities -----------------------------------------------------------------


def test_logprobs_of_drafted_tokens_are_those_of_plain_decoding(chat_model, borrow, plain):
    expected = plain(STORY)
    run = answer(
        borrow(chat_model), chat(chat_model, STORY), Script(expected.ids), max_tokens=40, logprobs=5
    )
    kinds = {t.kind for t in run.tokens}
    assert kinds >= {Kind.ACCEPTED, Kind.BONUS}
    for token, known in zip(run.tokens, expected.tokens, strict=False):
        assert token.id == known.id
        assert token.logprob == pytest.approx(known.logprob, abs=0.05)
        best_first = [a.logprob for a in token.alternatives]
        assert len(best_first) == 5
        assert best_first == sorted(best_first, reverse=True)
        assert token.alternatives[0].id == token.id  # greedy
        assert token.alternatives[0].logprob == pytest.approx(token.logprob)
        assert token.alternatives[0].text == chat_model.tokenizer.piece(token.id).decode()
        total = sum(np.exp(a.logprob) for a in token.alternatives)
        assert total <= 1.0 + 1e-6


def test_logprobs_zero_gives_no_alternatives(chat_model, borrow):
    run = answer(borrow(chat_model), chat(chat_model, STORY), max_tokens=2, logprobs=0)
    assert all(t.alternatives == () and t.logprob <= 0.0 for t in run.tokens)


def test_draft_alternatives_are_the_drafts_own(chat_model, borrow):
    drafter = self_draft(chat_model, borrow)
    run = answer(borrow(chat_model), chat(chat_model, STORY), drafter, max_tokens=12, logprobs=3)
    for token in run.tokens:
        assert len(token.draft_alternatives) == (3 if token.acceptance is not None else 0)
        if token.kind is Kind.ACCEPTED:
            assert token.draft_alternatives[0].id == token.id


# -- calls -----------------------------------------------------------------------------


@pytest.fixture
def counted(chat_model, borrow):
    """Target and draft caches on models that count calls."""
    models = CountingModel(chat_model), CountingModel(chat_model)
    return [CountingCache(model, borrow(chat_model)) for model in models]


def test_one_target_call_a_round_and_each_token_drafted_from_once(counted, chat_model):
    target, draft = counted
    drafter = ModelDrafter(draft, chat_model.n_vocab)
    prompt = chat(chat_model, STORY)
    run = answer(target, prompt, drafter, length=4, max_tokens=45)
    rounds = target.model.calls[1:]  # the first is the prompt's
    assert len(rounds) == len(run.rounds) == run.finish.usage.target_calls
    assert [len(call[0][1]) for call in rounds] == [r.draft_length + 1 for r in run.rounds]
    if any(r.accepted < r.draft_length for r in run.rounds):
        pytest.skip("a near-tie broke the self-draft on this machine")
    # The draft reads the prompt, then in the first round the prompt's last token; after a
    # fully accepted round its own last token and the bonus token in one call.
    calls = [call[0][1] for call in draft.model.calls]
    assert calls[0] == prompt[:-1]
    steps = calls[1:]
    sizes = [len(tokens) for tokens in steps]
    expected = []
    for i, r in enumerate(run.rounds):
        if r.draft_length:
            expected += [2 if i else 1] + [1] * (r.draft_length - 1)
    assert sizes == expected
    read = [token for tokens in calls for token in tokens]
    assert read == run.generation.context[: len(read)]  # each once, in order


def test_after_a_rejection_the_draft_reads_only_the_new_token(counted, chat_model, plain):
    """A draft that is a hot sampler is refused often; it must not read anything twice."""
    target, draft = counted
    drafter = ModelDrafter(draft, chat_model.n_vocab)
    params = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    run = answer(
        target,
        chat(chat_model, STORY),
        drafter,
        params=params,
        rule=Match(),
        length=4,
        max_tokens=40,
    )
    assert any(r.accepted < r.draft_length for r in run.rounds)
    steps = iter([call[0][1] for call in draft.model.calls][1:])
    full = False
    for r in run.rounds:
        for i in range(r.draft_length):
            assert len(next(steps)) == (2 if i == 0 and full else 1)
        if r.draft_length:
            full = r.accepted == r.draft_length
    check_caches(run, target.real, draft.real)


# -- what the events say ---------------------------------------------------------------


def check_events(run, drafts=True):
    """Everything a Token and a Round promise about each other."""
    tokens, usage = run.tokens, run.finish.usage
    assert [t.id for t in tokens] == run.answer[: len(tokens)]
    assert sum(r.emitted for r in run.rounds) == usage.completion_tokens == len(run.answer)
    assert sum(r.accepted for r in run.rounds) == usage.accepted_tokens
    assert sum(r.draft_length for r in run.rounds) == usage.drafted_tokens
    assert usage.target_calls == len(run.rounds)
    assert [r.index for r in run.rounds] == list(range(len(run.rounds)))
    by_round = {index: list(group) for index, group in groupby(tokens, lambda t: t.round)}
    depth = usage.prompt_tokens - 1
    at = 0
    for r in run.rounds:
        emitted = run.answer[at : at + r.emitted]
        at += r.emitted
        assert r.depth == depth
        depth += r.emitted
        assert 0 <= r.accepted <= r.draft_length == len(r.draft_tokens)
        assert r.rejected == r.draft_tokens[r.accepted :]
        assert [t for t, _ in r.draft_tokens[: r.accepted]] == emitted[: r.accepted]
        assert (r.drafter == "") == (r.draft_length == 0)
        assert r.emitted in (r.accepted, r.accepted + 1)
        assert r.emitted == r.accepted + 1 or r is run.rounds[-1]
        assert min(r.draft_seconds, r.verify_seconds, r.sample_seconds) >= 0.0
        parts = r.draft_seconds + r.verify_seconds + r.sample_seconds
        assert parts <= r.total_seconds + 1e-9
        shown = by_round.get(r.index, [])
        kinds = [t.kind for t in shown]
        assert kinds[: r.accepted] == [Kind.ACCEPTED] * len(kinds[: r.accepted])
        if r.emitted > r.accepted and len(shown) == r.emitted:
            if r.draft_length == 0:
                assert kinds[-1] is Kind.PLAIN
            else:
                assert kinds[-1] is (Kind.BONUS if r.accepted == r.draft_length else Kind.RESAMPLED)
        refused = r.emitted == r.accepted + 1 and r.accepted < r.draft_length
        assert (r.replacement is not None) == refused
        if refused:
            assert r.replacement[0] == emitted[-1]
        for token in shown:
            assert 0.0 <= token.p <= 1.0 + 1e-9
            judged = token.kind in (Kind.ACCEPTED, Kind.RESAMPLED)
            assert (token.q is not None) == (token.acceptance is not None) == judged
            assert (token.rejected is not None) == (token.kind is Kind.RESAMPLED)
            if token.rejected:
                assert token.rejected.id == r.draft_tokens[r.accepted][0]
                assert 0.0 < token.rejected.q <= 1.0 + 1e-9


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(
    length=st.integers(0, 8),
    max_tokens=st.integers(0, 30),
    rule=st.sampled_from([Exact(), Match(), Typical(0.3)]),
    drafter=st.sampled_from(["self", "lookup", "both", "script"]),
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.5]),
    seed=st.integers(0, 1000),
    stops=st.lists(st.text("abcdefgh ", min_size=1, max_size=2), max_size=2),
    repeat=st.booleans(),
)
def test_events_and_caches_are_consistent(
    recurrent_model, length, max_tokens, rule, drafter, temperature, seed, stops, repeat
):
    model = recurrent_model
    cache, other = model.new_cache(), model.new_cache()
    try:
        drafters = []
        if drafter in ("lookup", "both"):
            drafters.append(LookupDrafter())
        if drafter in ("self", "both"):
            drafters.append(ModelDrafter(other, model.n_vocab))
        if drafter == "script":
            drafters.append(Script(np.random.default_rng(seed).integers(0, 259, 200).tolist()))
        prompt = ([1, 70, 71, 72, 70, 71, 72, 73, 70] * 2)[: 9 + seed % 9]
        params = SamplingParams(
            temperature=temperature, seed=seed, repeat_penalty=1.2 if repeat else 1.0
        )
        run = answer(
            cache,
            prompt,
            *drafters,
            length=length,
            params=params,
            rule=rule,
            max_tokens=max_tokens,
            stops=stops,
        )
        check_events(run)
        check_caches(run, cache, other) if drafter in ("self", "both") else check_caches(run, cache)
    finally:
        model.release(cache)
        model.release(other)


# -- recurrent and hybrid models -------------------------------------------------------


def test_how_recurrent_models_roll_back(recurrent_model):
    mode = {"mamba.gguf": "checkpoint", "lfm2.gguf": "snapshots"}[recurrent_model.path.name]
    assert recurrent_model.rollback == mode
    assert recurrent_model.can_rollback
    assert recurrent_model.rollback_reason == ""


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 5, 100])
def test_greedy_with_rejections_equals_plain_on_recurrent_models(
    recurrent_model, borrow, wrong_every
):
    cache = borrow(recurrent_model)
    prompt = [1, 70, 71, 72, 73]
    plain = answer(cache, prompt, max_tokens=60, logprobs=2)
    cache.truncate(0)
    script = [t if i % wrong_every else (t + 1) % 259 for i, t in enumerate(plain.ids)]
    for length in (1, 4, 9):
        run = answer(cache, prompt, Script(script), length=length, max_tokens=60)
        assert_same_greedy(plain, run)
        assert run.finish.usage.cached_tokens in (0, len(prompt) - 1)
        check_caches(run, cache)


@pytest.mark.parametrize("length", [1, 4, 9])
def test_recurrent_drafts_are_rolled_back(recurrent_model, borrow, length):
    """The draft samples hot, so it is refused often, and its state must follow."""
    cache, drafter = borrow(recurrent_model), self_draft(recurrent_model, borrow)
    prompt = [1, 70, 71, 72, 73]
    params = SamplingParams(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0, seed=2)
    run = answer(cache, prompt, drafter, params=params, rule=Match(), length=length, max_tokens=60)
    assert any(r.accepted < r.draft_length for r in run.rounds)
    check_caches(run, cache, drafter.cache)
    context = run.generation.context
    held = len(drafter.cache.tokens)
    got = recurrent_model.evaluate([Evaluate(drafter.cache, context[held:], 1)])[0].copy()
    drafter.cache.truncate(0)
    fresh = recurrent_model.evaluate([Evaluate(drafter.cache, context, 1)])[0]
    assert np.allclose(got, fresh, atol=1e-2)


# -- sliding windows and a big vocabulary ----------------------------------------------


def test_gemma_generates_with_lookup_as_without(gemma):
    with LlamaModel.load(gemma, ModelOptions(n_ctx=1024, threads=1)) as model:
        assert model.rollback == "exact"
        assert model.n_vocab == 262_144
        cache = model.new_cache()
        text = "The cat sat on the mat. The dog sat on the log. The cat sat on the mat. The dog"
        # Longer than the window of 512, so that it slides while tokens are taken back.
        prompt = [model.tokenizer.bos, *model.tokenizer.tokenize(f"{text} sat here. " * 24 + text)]
        assert len(prompt) > 512
        plain = answer(cache, prompt, max_tokens=40, logprobs=2)
        run = answer(cache, prompt, LookupDrafter(), max_tokens=40)
        assert run.finish.usage.cached_tokens == len(prompt) - 1
        # Activations of 8 bits make this model's logits differ by up to 2 between kernels.
        assert_same_greedy(plain, run, near_tie=2.0)
        assert run.finish.usage.accepted_tokens > 0
        wrong = answer(cache, prompt, Script([9] * 100), max_tokens=40)
        assert_same_greedy(plain, wrong, near_tie=2.0)
        check_caches(wrong, cache)
