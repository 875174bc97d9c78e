"""llama.cpp behind LlamaModel: loading, evaluating, rolling back, tokens, and silence."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from engine_fixtures import CONTEXT, self_draft
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_recurrent import write_lfm2

from specchat.engine.llama import LlamaModel, ModelOptions
from specchat.engine.model import Evaluate
from specchat.errors import (
    BadRequestError,
    Cancelled,
    DecodeError,
    LoadCancelled,
    ModelLoadError,
    RollbackError,
)

pytestmark = pytest.mark.model

SMALL = ModelOptions(n_ctx=64, threads=1)
TEXT = "The quick brown fox jumps over the lazy dog. A crow held a piece of cheese in its beak."


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_lfm2(path)
    return path


def logits(cache, tokens, outputs=1):
    """A copy of what evaluating `tokens` returns."""
    return cache.model.evaluate([Evaluate(cache, tokens, outputs)])[0].copy()


# -- loading ---------------------------------------------------------------------------


def test_loading_tells_its_progress_and_closing_twice_is_fine(smollm2):
    seen = []
    model = LlamaModel.load(smollm2, SMALL, progress=lambda share: seen.append(share) or True)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 3
    assert (model.n_vocab, model.rollback) == (49_152, "exact")
    assert model.size_bytes > 90e6
    assert model.n_params > 130e6
    model.close()
    model.close()


def test_loading_can_be_cancelled(smollm2):
    seen = []

    def progress(share):
        seen.append(share)
        return share < 0.3

    with pytest.raises(LoadCancelled, match="was cancelled"):
        LlamaModel.load(smollm2, SMALL, progress=progress)
    assert seen[-1] < 1.0


def test_an_exception_while_loading_comes_out_as_itself(smollm2, capfd):
    def progress(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LlamaModel.load(smollm2, SMALL, progress=progress)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("broken", ["missing", "garbage", "cut"])
def test_a_file_that_cannot_be_loaded(tiny_path, tmp_path, broken):
    path = tmp_path / "broken.gguf"
    whole = tiny_path.read_bytes()
    if broken != "missing":
        path.write_bytes(whole[: len(whole) // 2] if broken == "cut" else b"GGUF" + b"\xff" * 99)
    with pytest.raises(ModelLoadError, match=r"Cannot load .*broken\.gguf: .+"):
        LlamaModel.load(path, SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type_k": "q9"}, "type_k is 'q9'; choose from f32, f16"),
        ({"type_v": ""}, "type_v is ''; choose from"),
        ({"flash_attention": "maybe"}, "flash_attention is 'maybe'; choose from auto, off, on"),
        ({"n_ctx": -1}, "n_ctx must be 32 to"),
        ({"n_ctx": 31}, "n_ctx must be 32 to"),
        ({"n_ctx": 2**32}, "n_ctx must be 32 to"),
        ({"threads": -1}, "threads must be 0 to"),
        ({"sequences": 0}, "sequences must be 1 to"),
        ({"prefill_chunk": 0}, "prefill_chunk must be 1 to"),
        ({"max_outputs": 0}, "max_outputs must be 1 to"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(BadRequestError, match=message) as caught:
        ModelOptions(**options)
    assert caught.value.param == next(iter(options))


def test_lora_files_are_checked(tiny_path, tmp_path):
    gone = tmp_path / "gone.gguf"
    with pytest.raises(ModelLoadError, match=r"LoRA file .*gone\.gguf does not exist"):
        LlamaModel.load(tiny_path, ModelOptions(n_ctx=64, lora=((str(gone), 1.0),)))
    with pytest.raises(ModelLoadError, match=r"LoRA .*tiny\.gguf does not fit tiny\.gguf"):
        LlamaModel.load(tiny_path, ModelOptions(n_ctx=64, lora=((str(tiny_path), 1.0),)))


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_kv_types(smollm2, kv):
    options = ModelOptions(n_ctx=64, type_k=kv, type_v=kv, flash_attention="on", threads=1)
    with LlamaModel.load(smollm2, options) as model:
        prompt = model.tokenizer.tokenize("The capital of Italy is the city of")
        best = int(logits(model.new_cache(), prompt)[0].argmax())
        assert model.tokenizer.piece(best) == b" Rome"


def test_a_closed_model_says_so(tiny_path):
    model = LlamaModel.load(tiny_path, SMALL)
    cache = model.new_cache()
    logits(cache, [1, 2, 3])
    model.close()
    with pytest.raises(DecodeError, match=r"tiny\.gguf is closed"):
        logits(cache, [4])
    cache.truncate(1)


# -- evaluating ------------------------------------------------------------------------


def test_several_outputs_are_those_of_single_calls(chat_model, borrow):
    tokens = chat_model.tokenizer.tokenize(TEXT)
    one_by_one = borrow(chat_model)
    singly = np.array([logits(one_by_one, [token])[0] for token in tokens])
    together = logits(borrow(chat_model), tokens, len(tokens))
    assert together.shape == (len(tokens), chat_model.n_vocab)
    assert together.dtype == np.float32
    assert np.allclose(singly, together, atol=0.2)
    assert logits(borrow(chat_model), tokens, 0).shape == (0, chat_model.n_vocab)


def test_sequences_that_share_a_call_do_not_mix(chat_model, borrow):
    texts = [TEXT, "Rome is the capital of Italy.", "def f(x):\n    return x"]
    prompts = [chat_model.tokenizer.tokenize(text) for text in texts]
    outputs = [1, 4, 0]
    caches = [borrow(chat_model) for _ in prompts]
    # At different depths, as in a server.
    for cache, prompt, depth in zip(caches, prompts, (0, 2, 3), strict=True):
        if depth:
            logits(cache, prompt[:depth], 0)
    requests = [
        Evaluate(cache, prompt[len(cache.tokens) :], n)
        for cache, prompt, n in zip(caches, prompts, outputs, strict=True)
    ]
    shared = [rows.copy() for rows in chat_model.evaluate(requests)]
    assert [rows.shape[0] for rows in shared] == outputs
    assert [cache.tokens for cache in caches] == prompts
    for cache, prompt, rows in zip(caches, prompts, shared, strict=True):
        cache.truncate(0)
        alone = logits(cache, prompt, len(rows))
        assert np.allclose(alone, rows, atol=0.2)


@pytest.mark.parametrize("keep", [0, 1, 5, 17])
def test_logits_after_truncate_are_those_of_a_fresh_cache(chat_model, borrow, keep):
    tokens = chat_model.tokenizer.tokenize(TEXT)
    rest = chat_model.tokenizer.tokenize(" But the cat slept.")
    used = borrow(chat_model)
    logits(used, tokens, 3)
    used.truncate(keep)
    assert used.tokens == tokens[:keep]
    fresh = borrow(chat_model)
    if keep:
        logits(fresh, tokens[:keep], 0)
    assert np.allclose(logits(used, rest), logits(fresh, rest), atol=0.05)
    used.truncate(len(used.tokens))
    used.truncate(1000)
    assert used.tokens == tokens[:keep] + rest


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(3, 258), min_size=1, max_size=5), st.integers(0, 5)),
        min_size=1,
        max_size=6,
    )
)
def test_rollback_on_recurrent_models(recurrent_model, steps):
    """Any series of calls, each rolled back as the loop does, equals a fresh evaluation."""
    model = recurrent_model
    cache, fresh = model.new_cache(), model.new_cache()
    try:
        context = [1, 70]
        logits(cache, context, 0)
        for tokens, dropped in steps:
            rows = logits(cache, tokens, len(tokens))
            kept = len(tokens) - min(dropped, len(tokens) - 1)
            context += tokens[:kept]
            cache.truncate(len(context))
            assert cache.tokens == context
            fresh.truncate(0)
            expected = logits(fresh, context)[0]
            assert np.allclose(rows[kept - 1], expected, atol=1e-2)
        got = logits(cache, [99])[0]
        assert np.allclose(got, logits(fresh, [99])[0], atol=1e-2)
    finally:
        model.release(cache)
        model.release(fresh)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(3, 258), min_size=1, max_size=5), st.integers(0, 5)),
        min_size=1,
        max_size=6,
    )
)
def test_rollback_to_a_mark_on_recurrent_models(recurrent_model, rounds):
    """As a draft is used: token by token since the mark, then back to any place after it."""
    model = recurrent_model
    cache, fresh = model.new_cache(), model.new_cache()
    try:
        context = [1, 70]
        logits(cache, context, 0)
        for tokens, kept in rounds:
            cache.mark()
            for token in tokens:
                logits(cache, [token])
            context += tokens[:kept]
            cache.truncate(len(context))
            assert cache.tokens == context
        fresh.truncate(0)
        logits(fresh, context, 0)
        assert np.allclose(logits(cache, [99])[0], logits(fresh, [99])[0], atol=1e-2)
    finally:
        model.release(cache)
        model.release(fresh)


def test_a_recurrent_state_is_never_cut_wrongly(recurrent_model, borrow):
    """Without a mark, tokens of several calls cannot be dropped: an error, not a wrong state."""
    cache = borrow(recurrent_model)
    for token in (1, 70, 71, 72, 73):
        logits(cache, [token])
    with pytest.raises(RollbackError, match="recurrent state keeps no history"):
        cache.truncate(2)


@pytest.mark.parametrize(
    ("depth", "tokens"), [(0, CONTEXT + 1), (CONTEXT - 3, 4), (CONTEXT, 1), (0, 300)]
)
def test_more_tokens_than_fit_are_refused(chat_model, borrow, depth, tokens):
    cache = borrow(chat_model)
    while len(cache.tokens) < depth:
        logits(cache, [5] * min(chat_model.max_batch, depth - len(cache.tokens)), 0)
    with pytest.raises(DecodeError, match=f"{tokens} tokens at position {depth} do not fit"):
        logits(cache, [5] * tokens)
    assert len(cache.tokens) == depth


def test_more_outputs_than_fit_are_refused(tiny_path):
    with LlamaModel.load(tiny_path, ModelOptions(n_ctx=64, max_outputs=8)) as model:
        cache = model.new_cache()
        with pytest.raises(DecodeError, match="9 outputs do not fit"):
            logits(cache, [5] * 9, 9)
        assert logits(cache, [5] * 9, 8).shape == (8, 259)


@pytest.mark.parametrize("tokens", [[], [-1], [49_152], [5, 10**6]])
def test_a_batch_that_llama_cpp_refuses_changes_nothing(chat_model, borrow, tokens):
    cache = borrow(chat_model)
    before = logits(cache, [5, 6, 7])
    with pytest.raises(DecodeError, match=r"returned -1 .* invalid batch"):
        logits(cache, tokens, min(1, len(tokens)))
    assert cache.tokens == [5, 6, 7]
    cache.truncate(2)
    assert np.allclose(logits(cache, [7]), before, atol=0.05)


def test_all_sequences_taken(chat_model, borrow):
    caches = [borrow(chat_model) for _ in range(3)]
    assert len({cache.seq_id for cache in caches}) == 3
    with pytest.raises(DecodeError, match=r"All 3 sequences .* are busy"):
        chat_model.new_cache()


# -- aborting --------------------------------------------------------------------------


def test_abort_leaves_the_cache_as_it_was(chat_model, borrow):
    cache = borrow(chat_model)
    tokens = chat_model.tokenizer.tokenize(TEXT)
    logits(cache, tokens, 0)
    threading.Timer(0.02, chat_model.abort).start()
    with pytest.raises(Cancelled):  # noqa: PT012
        while True:
            logits(cache, [5] * 200, 0)
            cache.truncate(len(tokens))
    with pytest.raises(Cancelled):  # until it is taken back
        logits(cache, [5])
    assert cache.tokens == tokens
    chat_model.abort(False)
    fresh = borrow(chat_model)
    logits(fresh, tokens, 0)
    assert np.allclose(logits(cache, [5]), logits(fresh, [5]), atol=0.05)


def test_abort_on_recurrent_models_leaves_a_usable_cache(recurrent_model, borrow):
    cache, drafter = borrow(recurrent_model), self_draft(recurrent_model, borrow)
    for c in (cache, drafter.cache):
        logits(c, [1, 70, 71], 0)
    drafter.cache.mark()
    logits(drafter.cache, [72])
    logits(drafter.cache, [73])
    recurrent_model.abort()
    with pytest.raises(Cancelled):
        logits(cache, [72])
    drafter.cache.truncate(4)  # evaluates again, which is aborted too
    recurrent_model.abort(False)
    fresh = borrow(recurrent_model)
    expected = logits(fresh, [1, 70, 71, 72])
    for c in (cache, drafter.cache):
        got = logits(c, [1, 70, 71, 72][len(c.tokens) :])
        assert np.allclose(got, expected, atol=1e-2)


# -- tokens ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def known_bytes(chat_model):
    """Bytes that SmolLM2's vocabulary has a token for; it lacks a few control characters."""
    pieces = map(chat_model.tokenizer.piece, range(chat_model.n_vocab))
    known = {piece[0] for piece in pieces if len(piece) == 1}
    assert set(range(0x20, 0x7F)) | {0x09, 0x0A, 0x0D} <= known
    return known


@given(st.text(max_size=60))
def test_tokens_and_back(chat_model, known_bytes, text):
    tokenizer = chat_model.tokenizer
    ids = tokenizer.tokenize(text)
    raw = text.encode("utf-8", "replace")
    assume(known_bytes.issuperset(raw))
    assert b"".join(tokenizer.piece(token) for token in ids) == raw
    assert not any(tokenizer.is_eog(token) for token in ids)


@given(
    st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "a", " ", "<", "|"]))
)
def test_text_cannot_make_special_tokens(chat_model, parts):
    tokenizer = chat_model.tokenizer
    special = set(tokenizer.special_texts().values())
    ids = tokenizer.tokenize("".join(parts))
    assert not special & set(ids)
    parsed = tokenizer.tokenize("".join(parts), parse_special=True)
    wanted = [tokenizer.special_texts()[p] for p in parts if p in tokenizer.special_texts()]
    assert [token for token in parsed if token in special] == wanted


def test_special_texts(chat_model):
    tokenizer = chat_model.tokenizer
    texts = tokenizer.special_texts()
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= texts.keys()
    for text, token in texts.items():
        assert tokenizer.text(token) == text
        assert tokenizer.tokenize(text, parse_special=True) == [token]
        assert tokenizer.piece(token) == b""
    assert tokenizer.is_eog(texts["<|im_end|>"])
    assert not tokenizer.is_eog(texts["<|im_start|>"])
    assert not tokenizer.add_bos


@pytest.mark.parametrize("token", [-1, 49_152, 10**6])
def test_tokens_that_do_not_exist(chat_model, token):
    for ask in (chat_model.tokenizer.piece, chat_model.tokenizer.is_eog, chat_model.tokenizer.text):
        with pytest.raises(BadRequestError, match=f"no token {token}; this model has 49152"):
            ask(token)


def test_a_long_text_is_tokenised_whole(chat_model):
    text = TEXT * 2000
    ids = chat_model.tokenizer.tokenize(text)
    assert b"".join(map(chat_model.tokenizer.piece, ids)) == text.encode()


# -- silence ---------------------------------------------------------------------------

QUIET = """
import sys
from specchat.engine.llama import Grammar, LlamaModel, ModelOptions
from specchat.engine.log_file import log_path
from specchat.engine.model import Evaluate
from specchat.errors import SpecchatError
good, bad = sys.argv[1:]
with LlamaModel.load(good, ModelOptions(n_ctx=64, threads=1)) as model:
    cache = model.new_cache()
    model.evaluate([Evaluate(cache, [5, 6, 7], 1)])
    for call in (
        lambda: LlamaModel.load(bad, ModelOptions(n_ctx=64)),
        lambda: model.evaluate([Evaluate(cache, [10**6], 1)]),
        lambda: Grammar(model.tokenizer, 'root ::= "a'),
        lambda: Grammar(model.tokenizer, 'root ::= root "a" | "b"'),
        lambda: Grammar(model.tokenizer, 'root ::= missing'),
    ):
        try:
            call()
        except SpecchatError:
            continue
        raise SystemExit("no error")
    Grammar(model.tokenizer, 'root ::= "a"').close()
assert log_path().stat().st_size > 1000
"""


def test_nothing_is_written_to_the_terminal(smollm2, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", QUIET, str(smollm2), str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
