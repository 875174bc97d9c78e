"""GGUF headers: what is read, and that nothing damaged gets past."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_llama import write_tiny_llama

from specchat.engine.header import Header, read_header
from specchat.engine.header_strings import skip_strings
from specchat.engine.llama import ModelOptions
from specchat.engine.memory import memory_need
from specchat.errors import ModelFileError

KIND = gguf.GGUFValueType


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("header") / "tiny.gguf"
    write_tiny_llama(path)
    return path


@pytest.fixture
def damaged(tmp_path: Path):
    """Writes bytes to a file and returns its path."""

    def write(data: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ModelFileError) as error:
        read_header(path)
    message = str(error.value)
    assert path.name in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_facts_of_smollm2(smollm2: Path) -> None:
    header = read_header(smollm2)
    assert header.architecture == "llama"
    assert header.quantisation == "Q4_1"
    assert header.vocabulary_size == len(header.tokens()) == len(header.token_types()) == 49152
    assert header.context_length == 8192
    assert header.chat_template is not None
    assert "<|im_start|>" in header.chat_template
    assert header.parameters == 134_515_008
    assert not header.recurrent
    assert not header.constructed


def test_facts_of_gemma(gemma: Path) -> None:
    header = read_header(gemma)
    assert header.architecture == "gemma3"
    assert header.vocabulary_size == 262144
    assert header.tokens()[2] == b"<bos>"


def test_everything_agrees_with_the_gguf_package(tiny: Path) -> None:
    header, reader = read_header(tiny), gguf.GGUFReader(str(tiny))
    assert [t.name for t in header.tensors] == [t.name for t in reader.tensors]
    for ours, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert ours.shape == tuple(theirs.shape)
        assert ours.offset == theirs.data_offset
        assert ours.nbytes == theirs.n_bytes
        assert ours.type == theirs.tensor_type.name
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert header.tokens() == [t.encode() for t in tokens]
    for key, value in header.metadata.items():
        expected = reader.fields[key].contents()
        assert value == (pytest.approx(expected) if isinstance(value, float) else expected)


def test_long_arrays_are_read_when_asked_for(smollm2: Path) -> None:
    header = read_header(smollm2)
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert header.tokens()[:3] == [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>"]
    assert np.bincount(header.token_types())[3] > 0  # control tokens


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["empty"]),
        (b"just some text", ["not a GGUF"]),
        (b"PK\x03\x04" + bytes(60), ["zip"]),
        (b"version https://git-lfs.github.com/spec/v1\n", ["Git LFS"]),
        (b"<!DOCTYPE html><html>", ["web page"]),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"weight": 1}', ["safetensors"]),
        (b"GGUF", ["ends early"]),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), ["version 1"]),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), ["big-endian"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1) + bytes(40), ["more than it can hold"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(40), ["more than it can hold"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), ["general.architecture"]),
        (b"x.gg", ["not a GGUF"]),
    ],
)
def test_what_is_no_gguf_is_named(damaged, data: bytes, words: list[str]) -> None:
    refused(damaged(data), *words)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    refused(tmp_path / "none.gguf", "does not exist")
    refused(tmp_path, "folder")


def test_every_truncation_is_noticed(tiny: Path, damaged) -> None:
    data = tiny.read_bytes()
    for length in [*range(4, 400, 7), *np.linspace(400, len(data) - 1, 60).astype(int)]:
        refused(damaged(data[:length]))
    refused(damaged(data[:-10]), "10 bytes are missing")


def test_repeated_names_are_refused(tiny: Path, damaged) -> None:
    data = tiny.read_bytes()
    doubled = data.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight", 1)
    refused(damaged(doubled), "blk.0.attn_q.weight", "repeated")


@pytest.mark.parametrize("small", [1024, 16])  # arrays read at once; left in the file
def test_a_thousand_mutations_never_do_worse_than_an_error(
    tiny: Path, damaged, small: int, monkeypatch
) -> None:
    """Bytes flipped, numbers enlarged, pieces cut out or doubled, all in the header."""
    data = tiny.read_bytes()
    header_end = min(t.offset for t in read_header(tiny).tensors)
    monkeypatch.setattr("specchat.engine.header_reader._SMALL", small)
    rng = np.random.default_rng(7)
    outcomes = {"read": 0, "refused": 0}
    tracemalloc.start()
    for _ in range(1000):
        mutated = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(4, header_end))
            kind = rng.integers(4)
            if kind == 0:
                mutated[at] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                mutated[at : at + 8] = struct.pack("<Q", int(rng.integers(2**63)))
            elif kind == 2:
                del mutated[at : at + int(rng.integers(1, 64))]
            else:
                mutated[at:at] = mutated[at : at + int(rng.integers(1, 64))]
        try:
            header = read_header(damaged(bytes(mutated)))
            header.tokens()
            header.token_types()
            memory_need(header, ModelOptions())
            outcomes["read"] += 1
        except ModelFileError:
            outcomes["refused"] += 1
    assert tracemalloc.get_traced_memory()[1] < 50 * len(data)  # no count is believed unchecked
    tracemalloc.stop()
    assert outcomes["refused"] > 300  # most damage shows
    assert outcomes["read"] > 10  # a changed name or value does not


def rewrite(source: Path, path: Path, fields: dict[str, tuple], suffix: str = "") -> Path:
    """A copy with other fields, given as (value, type) or (value, ARRAY, element type)."""
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in fields:
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == KIND.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=sub_type)
    for key, (value, kind, *sub_types) in fields.items():
        writer.add_key_value(key, value, kind, sub_type=sub_types[0] if sub_types else None)
    for tensor in reader.tensors:
        writer.add_tensor(f"{tensor.name}{suffix}", np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.scores", (7, KIND.UINT32)),
        ("tokenizer.ggml.scores", (["a"] * 259, KIND.ARRAY, KIND.STRING)),
        ("tokenizer.ggml.scores", ([0.0] * 258, KIND.ARRAY, KIND.FLOAT32)),
        ("tokenizer.ggml.token_type", (True, KIND.BOOL)),
        ("tokenizer.ggml.token_type", (["1"] * 259, KIND.ARRAY, KIND.STRING)),
        ("tokenizer.ggml.token_type", (["1"] * 2000, KIND.ARRAY, KIND.STRING)),
        ("tokenizer.ggml.tokens", ("one", KIND.STRING)),
        ("tokenizer.ggml.tokens", ([1] * 259, KIND.ARRAY, KIND.INT32)),
        ("tokenizer.ggml.tokens", ([1] * 2000, KIND.ARRAY, KIND.INT32)),
        ("general.alignment", (33, KIND.UINT32)),
        ("general.alignment", (32.0, KIND.FLOAT32)),
        ("llama.block_count", ("two", KIND.STRING)),
        ("llama.context_length", ("long", KIND.STRING)),
        ("llama.context_length", (float("inf"), KIND.FLOAT32)),
        ("llama.embedding_length", ([1, 2], KIND.ARRAY, KIND.INT32)),
        ("llama.attention.head_count", (0.5, KIND.FLOAT32)),
        ("llama.attention.head_count_kv", ("many", KIND.STRING)),
        ("llama.attention.key_length", (float("nan"), KIND.FLOAT64)),
    ],
)
def test_values_of_a_wrong_type_are_named(tiny: Path, tmp_path: Path, key: str, value) -> None:
    refused(rewrite(tiny, tmp_path / "model.gguf", {key: value}), key, "damaged")


def test_repeated_keys_are_refused(tiny: Path, damaged) -> None:
    first, second = b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.eos_token_id"
    refused(damaged(tiny.read_bytes().replace(second, first, 1)), first.decode(), "twice")


def test_lazily_read_arrays_agree_with_the_gguf_package(tiny: Path, monkeypatch) -> None:
    eager = read_header(tiny)
    monkeypatch.setattr("specchat.engine.header_reader._SMALL", 16)
    header, reader = read_header(tiny), gguf.GGUFReader(str(tiny))
    assert "tokenizer.ggml.token_type" not in header.metadata
    for key in ("tokens", "token_type"):
        assert f"tokenizer.ggml.{key}" in eager.metadata
    assert header.tokens() == [
        t.encode() for t in reader.fields["tokenizer.ggml.tokens"].contents()
    ]
    expected = reader.fields["tokenizer.ggml.token_type"].contents()
    assert header.token_types().tolist() == eager.token_types().tolist() == expected


def some_strings(rng: np.random.Generator) -> list[bytes]:
    """Short ones mostly; some longer than a byte can count, some zeros that look like lengths."""
    kinds = rng.choice(3, rng.integers(64, 400), p=rng.dirichlet([4, 0.3, 0.3]))
    return [
        (rng.bytes(rng.integers(12)), rng.bytes(rng.integers(200, 600)), bytes(rng.integers(40)))[k]
        for k in kinds
    ]


@pytest.mark.parametrize("seed", range(100))
def test_strings_are_passed_as_if_one_by_one(seed: int) -> None:
    """Whatever they hold, and wherever the piece of the file ends."""
    rng = np.random.default_rng(seed)
    start, most = b"x" * 9, int(rng.integers(450))
    piece = start + b"".join(struct.pack("<Q", len(s)) + s for s in some_strings(rng))
    piece = (piece + bytes(5000))[: max(4200, len(piece) - int(rng.integers(30)))]
    at, passed = len(start), 0
    while passed < most and at + 8 <= len(piece):
        at += 8 + int.from_bytes(piece[at : at + 8], "little")
        passed += 1
    assert skip_strings(piece, len(start), most) == (passed, at)


def test_long_arrays_cross_the_pieces_that_are_read(tmp_path: Path, tiny: Path) -> None:
    tokens = [f"{i}" * (1 + i % 90) for i in range(20_000)]
    path = rewrite(
        tiny,
        tmp_path / "model.gguf",
        {
            "tokenizer.ggml.tokens": (tokens, KIND.ARRAY, KIND.STRING),
            "tokenizer.ggml.scores": ([0.0] * 20_000, KIND.ARRAY, KIND.FLOAT32),
            "tokenizer.ggml.token_type": ([1] * 20_000, KIND.ARRAY, KIND.INT32),
        },
    )
    for _ in range(2):  # walked through; compared with what was met before
        header = read_header(path)
        assert header.tokens() == [t.encode() for t in tokens]
    twin = rewrite(path, tmp_path / "twin.gguf", {"llama.block_count": (2, KIND.UINT32)})
    assert read_header(twin).vocabulary_fingerprint() == header.vocabulary_fingerprint()
    tokens[10_001] = "#" + tokens[10_001][1:]
    other = rewrite(
        path,
        tmp_path / "other.gguf",
        {"tokenizer.ggml.tokens": (tokens, KIND.ARRAY, KIND.STRING)},
    )
    assert read_header(other).vocabulary_fingerprint() != header.vocabulary_fingerprint()
    assert read_header(other).tokens()[10_001] == tokens[10_001].encode()


@pytest.mark.parametrize("count", [2**20, 2**33])
def test_large_counts_in_a_large_file_are_not_believed(tmp_path: Path, count: int) -> None:
    """A hole of 64 GiB has room for them all, but reading that far would take minutes."""
    path = tmp_path / "model.gguf"
    for head in (
        struct.pack("<IQQ", 3, 0, count),
        struct.pack("<IQQ", 3, count, 0),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QIIQ", 0, 9, 8, 8 * count),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QIQ", 0, 8, 128 * count),
    ):
        with path.open("wb") as file:
            file.write(b"GGUF" + head)
            file.truncate(1 << 36)
        refused(path, "than it can hold")


def split(tiny: Path, folder: Path, count: int, present: int) -> Path:
    """A model that says it has `count` parts, of which `present` are there."""
    for number in range(present):
        fields = {"split.no": (number, KIND.UINT16), "split.count": (count, KIND.UINT16)}
        path = folder / f"big-{number + 1:05d}-of-{count:05d}.gguf"
        rewrite(tiny, path, fields, suffix=f".{number}")
    return folder / f"big-00001-of-{count:05d}.gguf"


def test_split_files_are_counted_whole(tiny: Path, tmp_path: Path) -> None:
    one: Header = read_header(tiny)
    whole = read_header(split(tiny, tmp_path, 3, 3))
    assert whole.weight_bytes == 3 * one.weight_bytes


def test_a_missing_part_is_named(tiny: Path, tmp_path: Path) -> None:
    first = split(tiny, tmp_path, 3, 2)
    with pytest.raises(ModelFileError, match=r"big-00003-of-00003\.gguf is missing"):
        read_header(first)
    with pytest.raises(ModelFileError, match="not the first part"):
        read_header(tmp_path / "big-00002-of-00003.gguf")
