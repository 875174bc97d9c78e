"""`specchat distill`: what it samples, trains and writes, on the real SmolLM2."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from test_hygiene import loaded_by
from tiny_llama import write_tiny_llama

from specchat.cli.main import main
from specchat.distill.collect import TOP, collect, load_target
from specchat.distill.data import (
    HELD_OUT_EVERY,
    Sample,
    draw_batch,
    load_shards,
    make_batch,
    save_shard,
    split,
)
from specchat.distill.embeddings import initial_embeddings
from specchat.distill.evaluate import held_out_acceptance, predicted_speedup
from specchat.distill.run import Order, check, distill
from specchat.distill.shape import Shape, choose_shape
from specchat.distill.sources import Sources, read_chats, read_corpus
from specchat.distill.stopping import StopSignals
from specchat.distill.work import WorkFolder
from specchat.distill.write import write_draft
from specchat.engine.engine import Engine, Settings
from specchat.engine.events import Finish
from specchat.engine.header import read_header
from specchat.engine.llama import LlamaModel, ModelOptions
from specchat.engine.messages import Message
from specchat.engine.model import Evaluate
from specchat.engine.pairing import check_pair
from specchat.engine.sampling import SamplingParams
from specchat.errors import BadRequestError, Cancelled, ModelFileError
from specchat.gguf_files import copy_fields, finish

if not os.environ.get("CI"):  # there its absence is a failure
    pytest.importorskip("torch")

import torch

from specchat.distill.loss import acceptance_and_kl, candidates, mixed
from specchat.distill.model import DraftModel
from specchat.distill.train import Recipe, Trainer


class Quiet:
    """Listens to a run; keeps what it said and measured."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.progress: list = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def collected(self, tokens: int, share: float) -> None:
        pass

    def trained(self, progress) -> None:
        self.progress.append(progress)

    def evaluated(self, share: float) -> None:
        assert 0 <= share <= 1


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def answers(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """A few dozen tokens of each of eight answers by SmolLM2."""
    folder = tmp_path_factory.mktemp("shards")
    engine = load_target(smollm2, 8)
    collect(engine, Sources(), folder, 10, lambda tokens, seconds: tokens >= 240)
    return load_shards(folder)[0]


# -- what the target says ---------------------------------------------------------------


def test_samples_are_what_the_target_says(answers: list[Sample], smollm2: Path) -> None:
    """Evaluated again in one go, the target gives the distributions that were kept."""
    assert sum(len(s.top_ids) for s in answers) >= 240
    options = ModelOptions(n_ctx=512, prefill_chunk=512, max_outputs=256)
    with LlamaModel.load(smollm2, options) as model:
        cache = model.new_cache()
        for s in answers[:3]:
            n = len(s.tokens) - s.prompt
            assert s.top_ids.shape == s.top_logprobs.shape == (n, TOP)
            cache.truncate(0)
            rows = model.evaluate([Evaluate(cache, s.tokens[:-1].tolist(), n)])[0]
            rows = rows.astype(np.float64)
            exact = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
            kept = np.take_along_axis(exact, s.top_ids.astype(np.int64), axis=1)
            # Kernels differ by the size of a call, in four-bit weights by a tenth of a nat.
            assert np.abs(kept - s.top_logprobs)[:, :8].mean() < 0.3
            assert np.abs(kept[1:] - s.top_logprobs[:-1])[:, :8].mean() > 1.0
    # Tokens were drawn from there: the emitted one is nearly always among the kept.
    found = [(s.top_ids == s.tokens[s.prompt :, None]).any(axis=1) for s in answers]
    assert np.concatenate(found).mean() > 0.85


def test_the_target_would_accept_itself(answers: list[Sample], smollm2: Path) -> None:
    """Nearly always: written eight at a time and read in one go, some near-ties fall the other
    way, and there are only some thirty positions. A draft a token behind gets little.
    """
    behind = [
        replace(s, top_ids=np.roll(s.top_ids, 1, 0), top_logprobs=np.roll(s.top_logprobs, 1, 0))
        for s in answers
    ]
    for temperature in (0.0, 0.8):
        shares: list[float] = []
        acceptance, positions = held_out_acceptance(
            smollm2, answers, temperature, report=shares.append
        )
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] <= 1
        assert positions == sum(len(s.top_ids) for s in split(answers)[1]) > 0
        assert acceptance > 0.7
        assert held_out_acceptance(smollm2, behind, temperature)[0] < 0.3


def test_collecting_goes_on_with_the_next_prompt(smollm2: Path, tmp_path: Path) -> None:
    for first, most in ((0, 30), (6, 30)):
        engine = load_target(smollm2, 4)
        collect(engine, Sources(), tmp_path, first, lambda tokens, seconds, m=most: tokens >= m)
    samples, seconds = load_shards(tmp_path)
    indexes = [s.index for s in samples]
    assert len(set(indexes)) == len(indexes)
    assert {i < 6 for i in indexes} == {True, False}
    assert seconds > 0


def test_prompts_are_many_and_the_same_every_time(smollm2: Path) -> None:
    text = "The heron stood in the shallow water and waited. " * 40
    chat = [Message("user", "Where do herons nest?")]
    sources = Sources(texts=[text], chats=[chat])
    with Engine.load(smollm2, options=ModelOptions(n_ctx=512)) as engine:
        prompts = [sources.prompt(i, engine, 320) for i in range(90)]
        assert prompts == [sources.prompt(i, engine, 320) for i in range(90)]
        assert all(0 < len(p) <= 320 for p in prompts)
        assert len({tuple(p) for p in prompts[0::3]}) > 25  # questions
        assert len({tuple(p) for p in prompts[1::3]}) > 20  # passages of the text
        assert all(p == engine.template.tokens(chat) for p in prompts[2::3])
        words = b"".join(engine.target.tokenizer.piece(t) for t in prompts[1]).decode()
        assert words in text


def test_a_corpus_is_all_text_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "below" / "a.txt").write_text("ä" * 50, encoding="utf-8")
    (tmp_path / ".hidden" / "b.txt").write_text("b" * 50)
    (tmp_path / "c.bin").write_bytes(b"\xff\xfe" * 50)
    assert read_corpus(tmp_path) == ["ä" * 50]
    with pytest.raises(BadRequestError, match="no UTF-8 text"):
        read_corpus(tmp_path / "empty")
    with pytest.raises(BadRequestError, match="not a folder"):
        read_corpus(tmp_path / "missing")


def test_stored_chats_are_cut_after_every_question(tmp_path: Path) -> None:
    from specchat.history import open_history

    path = tmp_path / "history.db"
    with pytest.raises(BadRequestError, match="no stored chats"):
        read_chats(path)
    assert not path.exists()
    history, _ = open_history(path)
    conversation = history.create()
    leaf = None
    for role, text in (("user", "One?"), ("assistant", "Yes."), ("user", "Two?" * 2000)):
        leaf = history.add_message(conversation.id, leaf, role, text).id
    history.set_active_leaf(conversation.id, leaf)
    history.close()
    first, second = read_chats(path)
    assert first == [Message("user", "One?")]
    assert [m.role for m in second] == ["user"]  # too long: its last question alone
    assert len(second[0].content) == 6000


# -- shards and batches -----------------------------------------------------------------


def made_up(index: int, n: int, prompt: int, vocabulary: int = 64, k: int = 8) -> Sample:
    """An "answer" whose next token is always the last one times 3 plus 1."""
    rng = np.random.default_rng(index)
    tokens = [int(rng.integers(vocabulary))]
    while len(tokens) < n:
        tokens.append((3 * tokens[-1] + 1) % vocabulary)
    top = [[(t + j) % vocabulary for j in range(k)] for t in tokens[prompt:]]
    logprobs = np.log([0.9] + [0.1 / k] * (k - 1))
    return Sample(
        index,
        np.array(tokens, np.int32),
        prompt,
        np.array(top, np.int32),
        np.tile(logprobs, (n - prompt, 1)).astype(np.float16),
    )


def test_shards_come_back_as_they_were(tmp_path: Path) -> None:
    samples = [made_up(i, 10 + i, 3) for i in range(5)]
    save_shard(tmp_path, samples[:3], 1.5)
    save_shard(tmp_path, samples[3:], 2.0)
    found, seconds = load_shards(tmp_path)
    assert seconds == 3.5
    for a, b in zip(samples, found, strict=True):
        assert (a.index, a.prompt) == (b.index, b.prompt)
        for name in ("tokens", "top_ids", "top_logprobs"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00001.npz", "00002.npz"]
    (tmp_path / "00002.npz").write_bytes((tmp_path / "00002.npz").read_bytes()[:200])
    with pytest.raises(BadRequestError, match=r"00002\.npz is damaged"):
        load_shards(tmp_path)


def test_a_batch_puts_each_distribution_behind_its_context() -> None:
    samples = [made_up(1, 7, 3), made_up(2, 9, 4)]
    batch = make_batch(samples)
    assert batch.tokens.shape == (2, 9)
    # The likeliest next token follows from the token where the batch points.
    assert ((3 * batch.tokens[batch.rows, batch.columns] + 1) % 64 == batch.top_ids[:, 0]).all()
    assert len(batch.rows) == 4 + 5


def test_batches_depend_on_seed_and_step_only() -> None:
    samples = [made_up(i, 20, 4) for i in range(30)]
    draws = [draw_batch(samples, 50, 1, step).tokens.tolist() for step in (5, 6, 5)]
    assert draws[0] == draws[2] != draws[1]
    assert len(draw_batch(samples, 50, 1, 0).rows) >= 50


def test_held_out_prompts_are_of_every_kind() -> None:
    held_out = [i for i in range(2000) if i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    for period in (2, 3, 4):  # kinds of prompts, ways of sampling
        assert len({i % period for i in held_out}) == period


def test_held_out_prompts_are_never_trained_on() -> None:
    for count in (3, 50):
        train, held_out = split([made_up(i, 8, 3) for i in range(count)])
        assert held_out
        assert not {s.index for s in train} & {s.index for s in held_out}
        assert len(train) + len(held_out) == count


# -- the loss ---------------------------------------------------------------------------


def closed_form(p: np.ndarray, q: np.ndarray, k: int) -> tuple[float, float]:
    """Σ min(p, q) over p's k likeliest, and KL(p ‖ q) with the rest as one token."""
    best = np.argsort(-p)[:k]
    p_k, q_k = np.append(p[best], 1 - p[best].sum()), np.append(q[best], 1 - q[best].sum())
    kl = sum(a * math.log(a / b) for a, b in zip(p_k, q_k, strict=True) if a > 1e-6)
    return float(np.minimum(p, q)[best].sum()), kl


@pytest.mark.parametrize("k", [5, 40])
def test_acceptance_and_kl_are_the_closed_form(k: int) -> None:
    rng = np.random.default_rng(k)
    logits, others = rng.normal(size=(6, 40)) * 2, rng.normal(size=(6, 40)) * 2
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (others, logits))
    ids = np.argsort(-p, axis=1)[:, :k]
    top = torch.from_numpy(np.log(np.take_along_axis(p, ids, axis=1)))
    found = acceptance_and_kl(
        torch.from_numpy(logits), torch.zeros(40), torch.from_numpy(ids.copy()), top
    )
    for i in range(6):
        acceptance, kl = closed_form(p[i], q[i], k)
        assert float(found[0][i]) == pytest.approx(acceptance, abs=1e-6)
        assert float(found[1][i]) == pytest.approx(kl, abs=1e-4)
    if k == 40:  # everything kept: one minus the total variation, exactly
        distance = np.abs(p - q).sum(axis=1) / 2
        assert np.allclose(found[0].numpy(), 1 - distance, atol=1e-6)
    assert float(mixed(*found, 0.25)) == pytest.approx(
        float(0.25 * found[1].mean() + 0.75 * (1 - found[0]).mean())
    )


def test_candidates_stand_for_the_whole_vocabulary() -> None:
    rng = np.random.default_rng(3)
    top_ids = rng.integers(0, 500, size=(20, 6))
    logits = rng.normal(size=500)
    for others in (50, 1000):
        sums = []
        for _ in range(300):
            c = candidates(top_ids, 500, others, rng)
            assert len(set(c.ids.tolist())) == len(c.ids)
            assert (c.ids[c.places] == top_ids).all()
            sums.append(np.exp(logits[c.ids] + c.log_weights).sum())
        error = np.std(sums) / len(sums) ** 0.5
        assert abs(np.mean(sums) - np.exp(logits).sum()) < 4 * error + 1e-3
        assert (others == 1000) == (np.std(sums) < 1e-3)


# -- the model and its file -------------------------------------------------------------


def lively(shape: Shape, seed: int = 0) -> DraftModel:
    """A model in which every part matters: larger weights, norms that are not one."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(shape.vocabulary, shape.width)).astype(np.float32)
    model = DraftModel(shape, 0.1 * embeddings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.3 * torch.randn_like(weight))
            elif "blk" in name:
                weight.mul_(2.0)
    return model


def logits_of(path: Path, tokens: list[int]) -> np.ndarray:
    """llama.cpp's, after each token: float32, shape (n, vocabulary)."""
    options = ModelOptions(
        n_ctx=128, max_outputs=len(tokens), type_k="f32", type_v="f32", flash_attention="off"
    )
    with LlamaModel.load(path, options) as model:
        return model.evaluate([Evaluate(model.new_cache(), tokens, len(tokens))])[0].copy()


@pytest.mark.parametrize(("kind", "worst"), [("F32", 5e-4), ("BF16", 0.02), ("Q8_0", 0.08)])
def test_llama_cpp_computes_what_pytorch_does(
    kind: str, worst: float, smollm2: Path, tmp_path: Path
) -> None:
    """In the same weights, so that only the arithmetic can differ. `worst` is the root mean
    square relative to the logits' own spread; with BF16 and Q8_0 weights llama.cpp rounds what
    flows through the model too.
    """

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sqrt(np.square(a - b).mean()) / expected.std())

    header = read_header(smollm2)
    shape = Shape(header.vocabulary_size, 128, 3)
    model = lively(shape)
    weights = {k: v.numpy() for k, v in model.state_dict().items()}
    path = write_draft(header, tmp_path / "draft.gguf", shape, weights, kind)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.dim() == 2:
                stored = gguf.GGMLQuantizationType[kind]
                rounded = gguf.dequantize(gguf.quantize(weight.numpy(), stored), stored)
                model.state_dict()[name].copy_(torch.from_numpy(rounded.reshape(weight.shape)))
        tokens = np.random.default_rng(1).integers(0, shape.vocabulary, 100)
        expected = model.logits(model(torch.from_numpy(tokens)[None]))[0].numpy()
    found = logits_of(path, tokens.tolist())
    assert distance(found, expected) < worst
    # The test would notice a model that looks at the tokens in another order.
    other = logits_of(path, [*tokens[:50][::-1].tolist(), *tokens[50:].tolist()])
    assert distance(other[-1], expected[-1]) > 2 * worst


@pytest.mark.parametrize("kind", ["byte-level BPE", "SentencePiece"])
def test_the_file_has_the_targets_vocabulary(kind: str, smollm2: Path, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.gguf"
    write_tiny_llama(tiny)
    target = read_header(smollm2 if kind == "byte-level BPE" else tiny)
    shape = Shape(target.vocabulary_size, 64, 1)
    weights = {k: v.numpy() for k, v in lively(shape).state_dict().items()}
    path = write_draft(target, tmp_path / "draft.gguf", shape, weights, "Q4_0")
    draft = read_header(path)
    assert check_pair(target, draft).note == "vocabularies are identical"
    assert draft.chat_template == target.chat_template
    assert draft.parameters == shape.parameters
    kept = {k: v for k, v in target.metadata.items() if k.startswith("tokenizer.")}
    assert {k: v for k, v in draft.metadata.items() if k.startswith("tokenizer.")} == kept
    assert (draft.token_types() == target.token_types()).all()
    found = []
    for file in (target.path, path):
        with LlamaModel.load(file, ModelOptions(n_ctx=64)) as model:
            tokenizer = model.tokenizer
            tokens = tokenizer.tokenize("Grüße, 3 < 4!<|im_end|>", parse_special=True)
            found.append((tokens, tokenizer.bos, tokenizer.eos, tokenizer.add_bos))
    assert found[0] == found[1]
    assert not list(tmp_path.glob("*.tmp"))


def test_first_embeddings_keep_the_targets_geometry(tmp_path: Path) -> None:
    """With room for every direction, products between tokens are the target's, centred."""
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path)
    tensors = {t.name: t for t in gguf.GGUFReader(str(path)).tensors}
    theirs = np.array(tensors["output.weight"].data, np.float64)
    theirs -= theirs.mean(axis=0)
    ours = initial_embeddings(path, 259, 64).astype(np.float64)
    a, b = theirs @ theirs.T, ours @ ours.T
    assert np.allclose(a / np.abs(a).max(), b / np.abs(b).max(), atol=1e-5)
    narrow = initial_embeddings(path, 259, 16)
    assert narrow.shape == (259, 16)
    assert narrow.std() == pytest.approx(0.05, rel=1e-3)


def test_the_shape_follows_from_what_a_step_costs(smollm2: Path) -> None:
    header = read_header(smollm2)
    shapes = {kind: choose_shape(header, kind) for kind in ("BF16", "Q8_0", "Q4_0")}
    widths = [shapes[kind].parameters for kind in ("BF16", "Q8_0", "Q4_0")]
    assert widths == sorted(widths)
    assert shapes["Q4_0"].step_bytes("Q4_0") <= 0.08 * header.step_bytes
    assert choose_shape(header, "Q8_0", 256, 1) == Shape(49152, 256, 1)
    for width, layers, name in ((100, 2, "--width"), (0, 2, "--width"), (128, 0, "--layers")):
        with pytest.raises(BadRequestError, match=name):
            Shape(49152, width, layers)


# -- training ---------------------------------------------------------------------------

QUICK = Recipe(positions=64, others=16, rate=5e-3, warmup=5, evaluate_every=10, patience=99)


def trainer(checkpoint: Path, recipe: Recipe = QUICK) -> Trainer:
    samples = [made_up(i, 24, 4) for i in range(64)]
    first = np.random.default_rng(5).normal(scale=0.05, size=(64, 64)).astype(np.float32)
    return Trainer(Shape(64, 64, 1), samples, lambda: first, recipe, checkpoint, threads=1)


def test_training_learns(tmp_path: Path) -> None:
    """The next token follows from the last one: a one-layer model finds out."""
    t = trainer(tmp_path / "c.pt")
    seen: list = []
    assert t.run(120, 1e9, never, seen.append)
    assert seen[0].acceptance is None
    assert [p.step for p in seen if p.acceptance is not None] == list(range(10, 121, 10))
    assert seen[9].acceptance < 0.6 < 0.85 < t.best <= 1.0
    assert seen[-1].loss < seen[0].loss


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole, first = trainer(tmp_path / "whole.pt"), trainer(tmp_path / "parts.pt")
    whole.run(23, 1e9, never)
    left = iter([False] * 9)
    assert not first.run(23, 1e9, lambda: next(left, True))
    assert first.step == 9
    second = trainer(tmp_path / "parts.pt")
    assert (second.step, second.steps) == (9, 23)
    assert second.run(23, 1e9, never)
    assert whole.step == second.step == 23
    assert whole.best == second.best
    for name, weight in whole.best_weights().items():
        assert np.array_equal(weight, second.best_weights()[name]), name


def test_training_ends_by_time_and_when_nothing_is_gained(tmp_path: Path) -> None:
    quick = trainer(tmp_path / "a.pt")
    assert quick.run(None, 0.0, never)
    assert quick.step == 1
    assert quick.best > 0
    frozen = Recipe(positions=64, others=16, rate=0.0, evaluate_every=2, patience=3)
    still = trainer(tmp_path / "b.pt", frozen)
    assert still.run(1000, 1e9, never)
    assert still.step == 2 * (3 + 1)
    assert still.run(1000, 1e9, never)  # asked again: done already
    assert still.step == 8


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    trainer(path).run(2, 1e9, never)
    raw = path.read_bytes()
    for damaged in (raw[: len(raw) // 2], b"not one"):
        path.write_bytes(damaged)
        with pytest.raises(BadRequestError, match=r"c\.pt is damaged"):
            trainer(path)


# -- the whole --------------------------------------------------------------------------


def test_from_a_target_to_a_draft_with_an_interruption(
    smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in training, then run to the end by the same command."""
    output = tmp_path / "draft.gguf"
    order = Order(smollm2, output, width=64, layers=1, parallel=8, tokens=250, steps=4, questions=1)
    listener = Quiet()
    with pytest.raises(Cancelled, match=r"after training step 2.*same command"):
        distill(order, lambda: len(listener.progress) >= 2, listener)
    assert order.work.checkpoint.exists()
    assert not output.exists()
    command = [
        "distill", "-m", str(smollm2), "-o", str(output), "--width", "64", "--layers", "1",
        "--parallel", "8", "--tokens", "250", "--steps", "4", "--questions", "1",
    ]  # fmt: skip
    assert main([*command, "--layers", "2"]) == 2
    assert "work for another shape" in capsys.readouterr().err
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "Going on with a draft" in shown
    assert "measured speedup" in shown
    assert [p.name for p in tmp_path.iterdir()] == ["draft.gguf"]  # the work folder is gone

    with Engine.load(smollm2, output, options=ModelOptions(n_ctx=256)) as engine:
        settings = Settings(
            sampling=SamplingParams(temperature=0), draft_length=3, drafter="draft", max_tokens=24
        )
        end = list(engine.chat([Message("user", "Name three birds.")], settings))[-1]
        assert isinstance(end, Finish)
        assert end.usage.drafted_tokens > 0
        length, speedup = predicted_speedup(engine, 0.0)
        assert (length, speedup) == (0, 1.0)
        assert predicted_speedup(engine, 0.99)[1] >= 1.0
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err


def test_an_interrupted_collection_goes_on(smollm2: Path, tmp_path: Path) -> None:
    order = Order(smollm2, tmp_path / "d.gguf", width=64, layers=1, parallel=4, tokens=10**6)
    asked = iter(range(10**6))
    with pytest.raises(Cancelled, match="while collecting"):
        distill(order, lambda: next(asked) > 20, Quiet())
    first, _ = load_shards(order.work.shards)
    assert first
    asked = iter(range(10**6))
    with pytest.raises(Cancelled, match="while collecting"):
        distill(order, lambda: next(asked) > 20, Quiet())
    both, _ = load_shards(order.work.shards)
    assert len(both) > len(first)
    assert min(s.index for s in both[len(first) :]) > max(s.index for s in first)


# -- what can be wrong ------------------------------------------------------------------


def refused(order: Order) -> str:
    with pytest.raises((BadRequestError, ModelFileError)) as caught:
        check(order)
    return str(caught.value)


def test_bad_orders_are_refused_in_one_line(smollm2: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft.gguf"
    assert "--hours" in refused(Order(smollm2, output, hours=0))
    assert "--width" in refused(Order(smollm2, output, width=100))
    assert "--parallel" in refused(Order(smollm2, output, parallel=0))
    assert "--threads" in refused(Order(smollm2, output, threads=-1))
    assert "Q9" in refused(Order(smollm2, output, kind="Q9"))
    assert "not a folder" in refused(Order(smollm2, output, corpus=tmp_path / "none"))
    assert "no stored chats" in refused(Order(smollm2, output, from_history=True))
    assert "no.gguf" in refused(Order(tmp_path / "no.gguf", output))
    output.touch()
    assert "exists already" in refused(Order(smollm2, output))


def test_an_unsupported_tokenizer_is_named(tmp_path: Path) -> None:
    tiny, other = tmp_path / "tiny.gguf", tmp_path / "rwkv.gguf"
    write_tiny_llama(tiny)
    reader, writer = gguf.GGUFReader(str(tiny)), gguf.GGUFWriter(str(other), "llama")
    copy_fields(reader, writer, {"tokenizer.ggml.model": "rwkv"})
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    finish(writer)
    assert "'rwkv'" in refused(Order(other, tmp_path / "draft.gguf"))


def test_a_full_disk_is_noticed_first(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 5 * 10**8))
    message = refused(Order(smollm2, tmp_path / "below" / "draft.gguf"))
    assert "0.5 GiB free" in message
    assert not list(tmp_path.iterdir())


def test_without_torch_the_command_says_how_to_get_it(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["distill", "-m", str(smollm2), "-o", str(tmp_path / "d.gguf")]) == 2
    assert "pip install 'specchat[distill]'" in capsys.readouterr().err


def test_only_training_loads_torch() -> None:
    code = "import specchat.engine.engine, specchat.distill.run, specchat.cli.distill"
    assert "torch" not in loaded_by(code)


def test_a_work_folder_is_for_one_plan(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "d.distill")
    assert not work.open({"shape": [64, 1]})
    assert work.open({"shape": [64, 1]})
    with pytest.raises(BadRequestError, match="another shape"):
        work.open({"shape": [64, 2]})
    (work.path / "plan.json").write_text("{")
    with pytest.raises(BadRequestError, match="damaged"):
        work.open({"shape": [64, 1]})
    work.remove()
    assert not work.path.exists()
    (tmp_path / "file").touch()
    with pytest.raises(BadRequestError, match="Cannot write"):
        WorkFolder(tmp_path / "file" / "d").open({})


def test_the_first_interrupt_only_asks() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        assert not signals.asked()
        signal.raise_signal(signal.SIGINT)
        assert signals.asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
