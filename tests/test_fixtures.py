"""Constructed models compute what they should."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_llama import write_tiny_llama

from specchat.bench.fixtures import (
    deepen,
    hostile_draft,
    random_draft,
    standard_fixture,
)
from specchat.engine.header import read_header
from specchat.engine.llama import LlamaModel, ModelOptions, quantize
from specchat.engine.model import Evaluate
from specchat.engine.pairing import check_pair
from specchat.errors import BadRequestError
from specchat.gguf_files import copy_fields, finish

OPTIONS = ModelOptions(n_ctx=64, threads=1)


def logits(path: Path) -> np.ndarray:
    """After a few tokens, from whatever model: float32, shape (n_vocab,)."""
    with LlamaModel.load(path, OPTIONS) as model:
        tokens = model.tokenizer.tokenize("The capital of France is")
        return model.evaluate([Evaluate(model.new_cache(), tokens, 1)])[0][0].copy()


@pytest.mark.parametrize("kind", ["BF16", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M"])
def test_eps_zero_computes_the_sources_function(kind: str, smollm2: Path, tmp_path: Path) -> None:
    source, deep = tmp_path / "source.gguf", tmp_path / "deep.gguf"
    quantize(smollm2, source, kind)
    deepen(source, deep, 2, 0.0)
    header = read_header(deep)
    assert header.constructed
    assert header.get("block_count") == 60
    assert np.abs(logits(deep) - logits(source)).max() < 1e-3


def test_a_larger_eps_disagrees_more(smollm2: Path, tmp_path: Path) -> None:
    base = logits(smollm2)
    distances = []
    for eps in (0.02, 0.2):
        deepen(smollm2, tmp_path / "deep.gguf", 2, eps)
        distances.append(np.abs(logits(tmp_path / "deep.gguf") - base).mean())
    assert 0 < distances[0] < distances[1]


def test_a_random_draft_pairs_with_its_source(smollm2: Path, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    random_draft(smollm2, path)
    assert check_pair(read_header(smollm2), read_header(path)).fits
    assert np.isfinite(logits(path)).all()


def test_fixtures_are_built_once_and_whole(tmp_path: Path) -> None:
    target, draft = standard_fixture(tmp_path, "Q4_1", 2, 0.02)
    stamp = target.stat().st_mtime_ns
    assert standard_fixture(tmp_path, "Q4_1", 2, 0.02) == (target, draft)
    assert target.stat().st_mtime_ns == stamp
    assert check_pair(read_header(target), read_header(draft)).fits
    assert hostile_draft(tmp_path).exists()
    assert not list(tmp_path.glob("*.tmp"))


def test_a_type_that_cannot_be_scaled_is_named(tmp_path: Path) -> None:
    source, wide = tmp_path / "tiny.gguf", tmp_path / "wide.gguf"
    write_tiny_llama(source)
    reader, writer = gguf.GGUFReader(str(source)), gguf.GGUFWriter(str(wide), "llama")
    copy_fields(reader, writer, {})
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data, np.float64))
    finish(writer)
    with pytest.raises(BadRequestError, match="type F64"):
        deepen(wide, tmp_path / "deep.gguf", 2, 0.1)


def test_what_cannot_be_made_is_refused(smollm2: Path, gemma: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="Q9"):
        quantize(smollm2, tmp_path / "x.gguf", "Q9")
    with pytest.raises(BadRequestError, match="gemma3"):
        deepen(gemma, tmp_path / "x.gguf", 2, 0.0)
