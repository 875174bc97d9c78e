"""Which draft fits which target, from headers alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_llama import write_tiny_llama

from specchat.engine.header import Header, read_header
from specchat.engine.pairing import MAX_PADDING, check_pair, require_pair
from specchat.errors import PairMismatchError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Header:
    path = tmp_path_factory.mktemp("pairing") / "tiny.gguf"
    write_tiny_llama(path)
    return read_header(path)


def changed(header: Header, **metadata: object) -> Header:
    """The same header with other tokenizer values."""
    new = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return replace(header, metadata={**header.metadata, **new})


def tokens(header: Header) -> list[str]:
    return list(header.metadata["tokenizer.ggml.tokens"])


def test_equal_vocabularies_fit(tiny: Header) -> None:
    fit = check_pair(tiny, tiny)
    assert fit.fits
    assert fit.note == "vocabularies are identical"
    require_pair(tiny, tiny)


def test_the_first_differing_token_is_named(tiny: Header) -> None:
    other = tokens(tiny)
    other[7], other[9] = "<zebra>", "<quagga>"
    with pytest.raises(PairMismatchError) as error:
        require_pair(tiny, changed(tiny, tokens=other))
    assert "token 7" in str(error.value)
    assert "'<zebra>'" in str(error.value)
    assert "<0x04>" in str(error.value)


def test_padding_is_tolerated_up_to_a_limit(tiny: Header) -> None:
    for extra, fits in ((1, True), (MAX_PADDING, True), (MAX_PADDING + 1, False)):
        padded = changed(tiny, tokens=[*tokens(tiny), *(f"<pad{i}>" for i in range(extra))])
        assert check_pair(tiny, padded).fits is fits
        assert check_pair(padded, tiny).fits is fits


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": "gpt2"}, "tokenizer model"),
        ({"pre": "qwen2"}, "tokenizer pre"),
        ({"bos_token_id": 5}, "bos_token_id"),
        ({"eos_token_id": 5}, "eos_token_id"),
        ({"add_bos_token": False}, "add_bos_token"),  # the default of this kind is true
    ],
)
def test_other_differences_are_named(tiny: Header, change: dict, word: str) -> None:
    fit = check_pair(tiny, changed(tiny, **change))
    assert not fit.fits
    assert word in fit.reason


def test_smollm2_cannot_draft_for_gemma(smollm2: Path, gemma: Path) -> None:
    with pytest.raises(PairMismatchError, match=r"cannot draft for .*gemma"):
        require_pair(read_header(gemma), read_header(smollm2))
