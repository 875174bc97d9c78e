"""Files that pass our checks do not take the process down when llama.cpp loads them."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_header import KIND, refused, rewrite, split
from tiny_llama import write_tiny_llama
from tiny_recurrent import write_lfm2

from specchat.engine.header import read_header
from specchat.errors import ModelFileError

# Loads the files named on standard input; "begin" without "end" is one that was fatal.
LOAD = """
import sys
from specchat.engine.llama import LlamaModel, ModelOptions
from specchat.errors import SpecchatError
for path in sys.stdin.read().split():
    print("begin", path, flush=True)
    try:
        with LlamaModel.load(path, ModelOptions(n_ctx=64, threads=1)):
            print("end loaded")
    except SpecchatError:
        print("end refused")
"""


def mutated(rng: np.random.Generator, data: bytes, end: int) -> bytes:
    """Up to three numbers or bits of the first `end` bytes changed, the length kept."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at, kind = int(rng.integers(4, end)), rng.integers(4)
        if kind == 0:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            changed[at : at + 8] = struct.pack("<Q", int(rng.integers(2**63)))
        elif kind == 2:
            changed[at] = int(rng.integers(256))
        else:
            changed[at : at + 4] = struct.pack("<I", rng.integers(2 ** int(rng.integers(1, 33))))
    return bytes(changed)


@pytest.mark.parametrize("write", [write_tiny_llama, write_lfm2])
def test_what_passes_the_checks_does_not_abort_llama(tmp_path: Path, write) -> None:
    """Of a thousand damaged headers each, those we find nothing wrong with."""
    write(tmp_path / "model.gguf")
    data, rng = (tmp_path / "model.gguf").read_bytes(), np.random.default_rng(11)
    end = min(t.offset for t in read_header(tmp_path / "model.gguf").tensors)
    passed = []
    for number in range(1000):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(mutated(rng, data, end))
        try:
            read_header(path).require_loadable()
            passed.append(str(path))
        except ModelFileError:
            path.unlink()
    assert len(passed) > 100
    result = subprocess.run(
        [sys.executable, "-c", LOAD], input=" ".join(passed), capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    lines = result.stdout.splitlines()
    assert result.returncode == 0, f"{lines[-1]}: {result.stderr[-2000:]}"
    assert lines.count("end loaded") > 50
    assert lines.count("end refused") > 5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading") / "tiny.gguf"
    write_tiny_llama(path)
    return path


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": 513}, "not 1 to 512"),
        ({"nextn_predict_layers": 3}, "more than its 2 blocks"),
        ({"attention.head_count": 2**28 + 2}, "head_count is 268435458"),
        ({"attention.key_length": 2**20}, "key_length"),
        ({"expert_count": 8}, "uses 0 of 8 experts"),
        ({"expert_count": 8, "expert_used_count": 9}, "uses 9 of 8"),
        ({"expert_used_count": 2}, "uses 2 of 0"),
        ({"expert_count": 2000, "expert_used_count": 2}, "of 2000 experts"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3}, "3 groups"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4},
         "1 to 3 of its 4 groups"),
    ],
)  # fmt: skip
def test_limits_of_llama_are_told(tiny: Path, tmp_path: Path, fields: dict, words: str) -> None:
    changed = {f"llama.{name}": (value, KIND.UINT32) for name, value in fields.items()}
    refused(rewrite(tiny, tmp_path / "model.gguf", changed), "damaged", words)


@pytest.mark.parametrize("twin", ["<0x41>", "<0x41>\0more"])
def test_tokens_that_are_the_same_are_named(tiny: Path, tmp_path: Path, twin: str) -> None:
    tokens = [t.decode() for t in read_header(tiny).tokens()]
    tokens[100] = twin
    fields = {"tokenizer.ggml.tokens": (tokens, KIND.ARRAY, KIND.STRING)}
    header = read_header(rewrite(tiny, tmp_path / "model.gguf", fields))
    with pytest.raises(ModelFileError, match="its tokens 68 and 100 are both '<0x41>'"):
        header.require_loadable()
    tokens[100] = tokens[101] = ""  # llama.cpp gives these names of their own
    fields = {"tokenizer.ggml.tokens": (tokens, KIND.ARRAY, KIND.STRING)}
    read_header(rewrite(tiny, tmp_path / "model.gguf", fields)).require_loadable()


def test_parts_of_other_models_are_named(tiny: Path, tmp_path: Path) -> None:
    first = split(tiny, tmp_path, 3, 3)
    second, third = (tmp_path / f"big-0000{n}-of-00003.gguf" for n in (2, 3))
    data = third.read_bytes()
    third.write_bytes(second.read_bytes())
    with pytest.raises(ModelFileError, match=r"00003\.gguf is damaged: it is not part 3"):
        read_header(first)
    fields = {"split.no": (2, KIND.UINT16), "split.count": (3, KIND.UINT16)}
    rewrite(tiny, third, fields, suffix=".1")
    with pytest.raises(ModelFileError, match="two of its parts hold the same tensor"):
        read_header(first)
    third.write_bytes(data)
    assert read_header(first).tensors


def test_a_file_that_vanishes_while_others_are_listed_has_a_verdict(
    tiny: Path, tmp_path: Path
) -> None:
    from specchat.models.discovery import scan

    for name in "abc":
        (tmp_path / f"{name}.gguf").write_bytes(tiny.read_bytes())
    listing = (f for f in scan([tmp_path]) if f.path.parent == tmp_path)
    assert next(listing).facts
    (tmp_path / "b.gguf").unlink()
    (tmp_path / "c.gguf").write_bytes(b"GGUF")
    assert ["does not exist" in f.problem or "damaged" in f.problem for f in listing] == [True] * 2
