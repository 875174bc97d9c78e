"""GGUF headers, read and checked without llama.cpp and without touching weights.

llama.cpp's own parser may abort the process on a damaged file, so every file passes here
first. Every count is compared with the bytes that are left before it is believed. The
`gguf` package's reader needs 2 s for 49,152 tokens and 10 s for 262,144; arrays are skipped
here and decoded only when asked for. Format: the GGUF specification of the ggml project.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specchat.errors import ModelFileError

_MAGIC = b"GGUF"
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_SMALL = 1024  # longer arrays stay in the file until asked for

# llama.cpp asserts, or takes on trust, that these are arrays of these element types.
_ELEMENTS = {
    "tokenizer.ggml.tokens": (_STRING,),
    "tokenizer.ggml.merges": (_STRING,),
    "tokenizer.ggml.scores": (6,),
    "tokenizer.ggml.token_type": (4, 5),
    "tokenizer.ggml.precompiled_charsmap": (0, 1),
}
# Whole numbers, of the architecture; some have one per layer instead.
_SIZES = ("block_count", "context_length", "embedding_length", "attention.key_length",
          "attention.value_length")  # fmt: skip
_LAYER_SIZES = ("attention.head_count", "attention.head_count_kv")

# Bytes and elements of a block, by ggml tensor type (ggml.h; ggml-common.h).
_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 4, 1), 1: ("F16", 2, 1), 2: ("Q4_0", 18, 32), 3: ("Q4_1", 20, 32),
    6: ("Q5_0", 22, 32), 7: ("Q5_1", 24, 32), 8: ("Q8_0", 34, 32), 9: ("Q8_1", 36, 32),
    10: ("Q2_K", 84, 256), 11: ("Q3_K", 110, 256), 12: ("Q4_K", 144, 256),
    13: ("Q5_K", 176, 256), 14: ("Q6_K", 210, 256), 15: ("Q8_K", 292, 256),
    16: ("IQ2_XXS", 66, 256), 17: ("IQ2_XS", 74, 256), 18: ("IQ3_XXS", 98, 256),
    19: ("IQ1_S", 50, 256), 20: ("IQ4_NL", 18, 32), 21: ("IQ3_S", 110, 256),
    22: ("IQ2_S", 82, 256), 23: ("IQ4_XS", 136, 256), 24: ("I8", 1, 1), 25: ("I16", 2, 1),
    26: ("I32", 4, 1), 27: ("I64", 8, 1), 28: ("F64", 8, 1), 29: ("IQ1_M", 56, 256),
    30: ("BF16", 2, 1), 34: ("TQ1_0", 54, 256), 35: ("TQ2_0", 66, 256), 39: ("MXFP4", 17, 32),
}  # fmt: skip
_UNKNOWN_TYPES = range(31, 64)  # newer than this table: left to llama.cpp, size not checked

_LOOKALIKES = (
    (b"PK\x03\x04", "a zip archive or PyTorch checkpoint"),
    (b"\x80\x02", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer: the real file was not downloaded"),
    (b"<!DOCTYPE", "a web page: the download failed"),
    (b"<html", "a web page: the download failed"),
    (b"ggml", "an old GGML file; convert it to GGUF"),
    (b"ggjt", "an old GGML file; convert it to GGUF"),
)
KV_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `offset` counts from the file's beginning; `nbytes` None if unknown."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class _LazyArray:
    """A long array still in the file: element type, count, where its elements begin/end."""

    kind: int
    count: int
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a GGUF says of itself. `metadata` holds scalars, strings and short arrays; sizes
    are bytes. For a split model, `tensors` and `weight_bytes` cover all parts.
    """

    path: Path
    version: int
    file_size: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    _arrays: Mapping[str, _LazyArray] = field(repr=False, default_factory=dict)

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def name(self) -> str:
        return str(self.metadata.get("general.name", self.path.stem))

    @property
    def constructed(self) -> bool:
        """Whether the file is a benchmark fixture made by `bench/fixtures.py`."""
        return "constructed" in self.name

    def get(self, key: str, default: Any = None) -> Any:
        """An architecture's own value, e.g. get("block_count")."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    @property
    def context_length(self) -> int:
        """Context the model was trained for, in tokens (0 unknown)."""
        return int(self.get("context_length", 0))

    @property
    def chat_template(self) -> str | None:
        value = self.metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else None

    @cached_property
    def weight_bytes(self) -> int:
        return sum(t.nbytes or 0 for t in self.tensors)

    @cached_property
    def parameters(self) -> int:
        return sum(math.prod(t.shape) for t in self.tensors)

    @cached_property
    def quantisation(self) -> str:
        """The type that most weight bytes have, e.g. "Q4_K"."""
        sums: dict[str, int] = {}
        for t in self.tensors:
            sums[t.type] = sums.get(t.type, 0) + math.prod(t.shape)
        return max(sums, key=lambda name: sums[name]) if sums else "none"

    @property
    def recurrent(self) -> bool:
        """Whether some layers keep a running state instead of a KV cache."""
        return any(key.startswith(f"{self.architecture}.ssm.") for key in self.metadata) or (
            self.architecture.startswith("rwkv")
        )

    def kv_bytes(self, n_ctx: int, type_k: str = "f16", type_v: str = "f16") -> int:
        """Memory of the KV cache for `n_ctx` tokens: layers × heads × width × 2.

        An upper bound for hybrid models, whose recurrent layers need less.
        """
        layers = int(self.get("block_count", 0))
        heads = self.get("attention.head_count", 0)
        heads = (max(heads, default=0) if isinstance(heads, list) else heads) or 1
        kv_heads = self.get("attention.head_count_kv", heads)
        total = sum(kv_heads) if isinstance(kv_heads, list) else layers * int(kv_heads)
        width = int(self.get("embedding_length", 0)) // heads
        k = int(self.get("attention.key_length", width)) * KV_BYTES[type_k]
        v = int(self.get("attention.value_length", width)) * KV_BYTES[type_v]
        return int(n_ctx * total * (k + v))

    @property
    def vocabulary_size(self) -> int:
        array = self._arrays.get("tokenizer.ggml.tokens")
        if array is not None:
            return array.count
        return len(self.metadata.get("tokenizer.ggml.tokens", ()))

    def tokens(self) -> list[bytes]:
        """Every token's text as stored. Reads the file again."""
        array = self._arrays.get("tokenizer.ggml.tokens")
        if array is None:
            return [str(t).encode() for t in self.metadata.get("tokenizer.ggml.tokens", ())]
        raw, at, tokens = self._raw(array), 0, []
        for _ in range(array.count):
            size = int.from_bytes(raw[at : at + 8], "little")
            tokens.append(raw[at + 8 : at + 8 + size])
            at += 8 + size
        return tokens

    def token_types(self) -> npt.NDArray[np.int32]:
        """Every token's type (1 normal, 3 control, 4 user-defined, 6 byte); empty if absent."""
        array = self._arrays.get("tokenizer.ggml.token_type")
        if array is None:
            return np.array(self.metadata.get("tokenizer.ggml.token_type", ()), np.int32)
        return np.frombuffer(self._raw(array), f"<{_SCALARS[array.kind]}").astype(np.int32)

    def vocabulary_fingerprint(self) -> str:
        """Equal for files whose tokenizer kind and token texts are byte for byte equal."""
        digest = hashlib.sha256(str(self.metadata.get("tokenizer.ggml.model")).encode())
        array = self._arrays.get("tokenizer.ggml.tokens")
        digest.update(self._raw(array) if array else repr(self.tokens()).encode())
        return digest.hexdigest()[:16]

    def _raw(self, array: _LazyArray) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(array.start)
                raw = file.read(array.end - array.start)
        except OSError as error:
            raise ModelFileError(f"Cannot read {self.path}: {error.strerror}.") from None
        if len(raw) != array.end - array.start:
            raise ModelFileError(f"{self.path} changed while it was being read.")
        return raw


def read_header(path: str | Path, *, check_tensors: bool = True) -> Header:
    """Read and check a GGUF's header; for a split file name its first part.

    Raises ModelFileError for anything llama.cpp could stumble over.
    """
    path = Path(path)
    header = _read_one(path, check_tensors)
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return header
    if header.metadata.get("split.no") != 0:
        raise ModelFileError(f"{path} is not the first part of a split model; name the first.")
    tensors = list(header.tensors)
    for part in _other_parts(path, count):
        if not part.is_file():
            raise ModelFileError(f"{path.name} needs {count} parts, but {part} is missing.")
        tensors += _read_one(part, check_tensors, first=False).tensors
    return Header(
        header.path, header.version, header.file_size, header.metadata, tuple(tensors),
        header._arrays,
    )  # fmt: skip


def _other_parts(path: Path, count: int) -> list[Path]:
    match = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[2]) != count:
        raise ModelFileError(
            f"{path} says it is part 1 of {count}, but is not named …-00001-of-{count:05d}.gguf."
        )
    return [path.with_name(f"{match[1]}-{i:05d}-of-{match[2]}.gguf") for i in range(2, count + 1)]


def _read_one(path: Path, check_tensors: bool, first: bool = True) -> Header:
    if not path.exists():
        raise ModelFileError(f"{path} does not exist. Check the path.")
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder. Name a .gguf file in it.")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(512)
            _check_magic(path, start)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data, size).read(check_tensors, first)
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror or error}.") from None


def _check_magic(path: Path, start: bytes) -> None:
    if not start:
        raise ModelFileError(f"{path} is empty. Download it again.")
    if start[:4] == _MAGIC:
        return
    what = next((text for begin, text in _LOOKALIKES if start.startswith(begin)), None)
    if what is None and start[8:10] == b'{"':
        what = "a safetensors file; convert it to GGUF"
    raise ModelFileError(f"{path} is not a GGUF file" + (f" but {what}." if what else "."))


class _Reader:
    """A cursor over one file's header; every read is bounded by the file's size."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size = path, data, size
        self.at = 4

    def bad(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is damaged: {what}. Download it again.")

    def number(self, code: str) -> Any:
        width = struct.calcsize(f"<{code}")
        if self.at + width > self.size:
            raise self.bad(f"the header ends early, at byte {self.size}")
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += width
        return value

    def count(self, what: str, least: int) -> int:
        """A count of things that take at least `least` bytes each."""
        value = int(self.number("Q"))
        if value * least > self.size - self.at:
            raise self.bad(f"it claims {value} {what}, more than the file can hold")
        return value

    def raw_string(self) -> bytes:
        length = self.count("bytes in a string", 1)
        self.at += length
        return self.data[self.at - length : self.at]

    def string(self, what: str) -> str:
        try:
            return self.raw_string().decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{what} is not UTF-8 text") from None

    def read(self, check_tensors: bool, first: bool) -> Header:
        version = self.number("I")
        if version & 0xFFFF == 0 and version:
            raise ModelFileError(f"{self.path} has big-endian data, which this machine cannot use.")
        if version not in (2, 3):
            raise ModelFileError(f"{self.path} has GGUF version {version}; 2 and 3 are supported.")
        n_tensors = self.count("tensors", 24)
        n_fields = self.count("metadata fields", 13)
        metadata: dict[str, Any] = {}
        arrays: dict[str, _LazyArray] = {}
        for _ in range(n_fields):
            key = self.string("a metadata key")
            if key in metadata or key in arrays:
                raise self.bad(f"the key {key!r} appears twice")
            value = self.value(key, self.number("I"))
            if isinstance(value, _LazyArray):
                arrays[key] = value
            else:
                metadata[key] = value
        if first:
            self.check_fields(metadata, arrays)
        tensors = self.tensors(n_tensors, metadata) if check_tensors else ()
        return Header(self.path, version, self.size, metadata, tensors, arrays)

    def value(self, key: str, kind: int) -> Any:
        if kind in _SCALARS:
            if kind == 7:
                return bool(self.number("B"))
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.raw_string().decode("utf-8", "replace")
        if kind != _ARRAY:
            raise self.bad(f"the field {key!r} has the unknown type {kind}")
        return self.array(key)

    def array(self, key: str) -> Any:
        kind = self.number("I")
        if kind not in _ELEMENTS.get(key, (kind,)):
            raise self.bad(f"the array {key!r} has elements of the wrong type {kind}")
        if kind == _STRING:
            count = self.count(f"strings in {key!r}", 8)
            start, at, data, size = self.at, self.at, self.data, self.size
            unpack = struct.Struct("<Q").unpack_from
            for _ in range(count):
                if at + 8 > size:
                    raise self.bad(f"the header ends early, in {key!r}")
                at += 8 + unpack(data, at)[0]
                if at > size:
                    raise self.bad(f"a string in {key!r} reaches past the end of the file")
            self.at = at
            if count > _SMALL:
                return _LazyArray(kind, count, start, at)
            self.at = start
            return [self.raw_string().decode("utf-8", "replace") for _ in range(count)]
        if kind not in _SCALARS:
            raise self.bad(f"the array {key!r} has elements of the unsupported type {kind}")
        width = struct.calcsize(f"<{_SCALARS[kind]}")
        count = self.count(f"elements in {key!r}", width)
        start = self.at
        self.at += count * width
        if count > _SMALL:
            return _LazyArray(kind, count, start, self.at)
        code = "B" if kind == 7 else _SCALARS[kind]
        return list(struct.unpack_from(f"<{count}{code}", self.data, start))

    def check_fields(self, metadata: Mapping[str, Any], arrays: Mapping[str, _LazyArray]) -> None:
        """What llama.cpp needs and would not fail on gracefully."""
        if not isinstance(metadata.get("general.architecture"), str):
            raise self.bad("general.architecture is missing")
        tokens = arrays.get("tokenizer.ggml.tokens", metadata.get("tokenizer.ggml.tokens"))
        if tokens is None or "tokenizer.ggml.model" not in metadata:
            raise ModelFileError(f"{self.path} has no tokenizer, so it cannot chat.")
        for key in _ELEMENTS:
            if key in metadata and not isinstance(metadata[key], list):
                raise self.bad(f"{key} is not a list")
        n = tokens.count if isinstance(tokens, _LazyArray) else len(tokens)
        if n == 0:
            raise self.bad("tokenizer.ggml.tokens is empty")
        for name in ("token_type", "scores"):
            other = arrays.get(f"tokenizer.ggml.{name}", metadata.get(f"tokenizer.ggml.{name}"))
            length = other.count if isinstance(other, _LazyArray) else len(other or ())
            if other is not None and length < n:
                raise self.bad(f"tokenizer.ggml.{name} has {length} entries for {n} tokens")
        for name in (*_SIZES, *_LAYER_SIZES):
            key = f"{metadata['general.architecture']}.{name}"
            value = metadata.get(key, 0)
            values = value if isinstance(value, list) and name in _LAYER_SIZES else [value]
            if not all(type(v) is int and v >= 0 for v in values):
                raise self.bad(f"{key} is {value!r:.40}, not a size")
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.bad(f"general.alignment is {alignment!r}, not a power of two")

    def tensors(self, count: int, metadata: Mapping[str, Any]) -> tuple[TensorInfo, ...]:
        infos, names = [], set()
        for _ in range(count):
            name = self.string("a tensor name")
            if name in names or len(name) > 63:
                raise self.bad(f"the tensor name {name[:70]!r} is repeated or too long")
            names.add(name)
            n_dims = self.number("I")
            if not 1 <= n_dims <= 4:
                raise self.bad(f"the tensor {name!r} has {n_dims} dimensions")
            shape = tuple(int(self.number("Q")) for _ in range(n_dims))
            infos.append((name, shape, self.number("I"), int(self.number("Q"))))
        alignment = int(metadata.get("general.alignment", 32))
        base = (self.at + alignment - 1) // alignment * alignment
        return tuple(self.tensor(info, base, alignment) for info in infos)

    def tensor(
        self, info: tuple[str, tuple[int, ...], int, int], base: int, alignment: int
    ) -> TensorInfo:
        name, shape, kind, offset = info
        elements = math.prod(shape)
        if elements <= 0 or elements >= 2**62:
            raise self.bad(f"the tensor {name!r} has the shape {shape}")
        if offset % alignment:
            raise self.bad(f"the tensor {name!r} is misaligned")
        if kind in _TYPES:
            label, block_bytes, block = _TYPES[kind]
            if shape[0] % block:
                raise self.bad(f"rows of the tensor {name!r} are not whole {label} blocks")
            nbytes: int | None = elements // block * block_bytes
        elif kind in _UNKNOWN_TYPES:
            label, nbytes = f"type{kind}", None
        else:
            raise self.bad(f"the tensor {name!r} has the unknown type {kind}")
        missing = base + offset + (nbytes or 0) - self.size
        if missing > 0:
            raise ModelFileError(
                f"{self.path} is cut short: {missing:,} bytes are missing. Download it again."
            )
        return TensorInfo(name, shape, label, base + offset, nbytes)
