"""The parser behind `header.py`: GGUF bytes into metadata and tensors, all of it checked.

The file is read in pieces, never mapped: a mapped file that another program cuts short would
kill the process. Every count is compared with the bytes that are left before it is believed.
Format: the GGUF specification of the ggml project.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from specchat.engine.ggml_types import TYPES, UNKNOWN_TYPES
from specchat.engine.header_checks import ELEMENTS, check_fields, damaged
from specchat.engine.header_strings import seen, skip_strings
from specchat.engine.model_files import open_model, require_gguf
from specchat.errors import ModelFileError

SCALARS = {
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
_STRUCTS = {code: struct.Struct(f"<{code}") for code in set(SCALARS.values())}
_SHAPES = {n: struct.Struct(f"<{n}QIQ") for n in range(1, 5)}  # n sizes, type, offset
_LONGEST_INFO = 8 + 63 + 4 + 4 * 8 + 12  # bytes of a tensor's name, sizes, type, offset
_STRING, _ARRAY = 8, 9
_SMALL = 1024  # longer arrays stay in the file until asked for
_PIECE = 1 << 18  # bytes read at once
# Far beyond any model; a damaged header in a large file could claim to hold as much as that.
_MOST_FIELDS, _MOST_TENSORS, _MOST_STRINGS = 1 << 16, 1 << 17, 1 << 22
_MOST_BYTES = 1 << 26  # of the strings of a header that are kept; of an array of strings


class TensorInfo(NamedTuple):
    """One tensor: `offset` counts from the file's beginning; `nbytes` None if unknown."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class LazyArray:
    """A long array still in the file: element type, count, where its elements begin/end.

    `digest` is the SHA-256 of its bytes where those were all read (strings).
    """

    kind: int
    count: int
    start: int
    end: int
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one file holds; see `header.Header`."""

    version: int
    size: int
    metadata: dict[str, Any]
    arrays: dict[str, LazyArray]
    tensors: tuple[TensorInfo, ...]


def parse(path: Path, check_tensors: bool, first: bool) -> Parsed:
    """Read one file's header. `first` False is for later parts of a split model, which need
    not be complete in themselves. Raises ModelFileError.
    """
    with open_model(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            reader = _Reader(path, file, size)
            reader.check_magic()
            return reader.read(check_tensors, first)
        except OSError as error:
            raise ModelFileError(f"Cannot read {path}: {error.strerror or error}.") from None


class _Reader:
    """A cursor over one file's header; every read is bounded by the file's size."""

    def __init__(self, path: Path, file: FileIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.at = self.kept = 0
        self.piece, self.base = b"", 0  # bytes read last, and where they lie in the file

    def bad(self, what: str) -> ModelFileError:
        return damaged(self.path, what)

    def fetch(self, start: int, length: int) -> bytes:
        """`length` bytes at `start`, which must lie inside the file."""
        self.file.seek(start)
        raw = self.file.read(length)
        if len(raw) != length:
            raise ModelFileError(f"{self.path} changed while it was being read.")
        return raw

    def look(self, length: int) -> int:
        """Have the next `length` bytes in `piece`; returns where in it they begin."""
        if self.at + length > self.size:
            raise self.bad(f"the header ends early, at byte {self.size}")
        offset = self.at - self.base
        if offset < 0 or offset + length > len(self.piece):
            wanted = min(max(length, _PIECE), self.size - self.at)
            self.piece, self.base, offset = self.fetch(self.at, wanted), self.at, 0
        return offset

    def take(self, length: int) -> bytes:
        offset = self.look(length)
        self.at += length
        return self.piece[offset : offset + length]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        offset = self.look(form.size)
        self.at += form.size
        return form.unpack_from(self.piece, offset)

    def number(self, code: str) -> Any:
        return self.unpack(_STRUCTS[code])[0]

    def count(self, what: str, least: int, most: int = 1 << 62) -> int:
        """A count of things that take at least `least` bytes each."""
        value = int(self.number("Q"))
        if value * least > self.size - self.at or value > most:
            raise self.bad(f"it claims {value} {what}, more than it can hold")
        return value

    def raw_string(self) -> bytes:
        length = self.count("bytes in a string", 1, _MOST_BYTES - self.kept)
        self.kept += length
        return self.take(length)

    def string(self, what: str) -> str:
        try:
            return self.raw_string().decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{what} is not UTF-8 text") from None

    def check_magic(self) -> None:
        if not self.size:
            raise ModelFileError(f"{self.path} is empty. Download it again.")
        require_gguf(self.path, self.fetch(0, min(self.size, 512)))
        self.at = 4

    def read(self, check_tensors: bool, first: bool) -> Parsed:
        version = self.number("I")
        if version & 0xFFFF == 0 and version:
            raise ModelFileError(f"{self.path} has big-endian data, which this machine cannot use.")
        if version not in (2, 3):
            raise ModelFileError(f"{self.path} has GGUF version {version}; 2 and 3 are supported.")
        n_tensors = self.count("tensors", 24, _MOST_TENSORS)
        n_fields = self.count("metadata fields", 13, _MOST_FIELDS)
        metadata: dict[str, Any] = {}
        arrays: dict[str, LazyArray] = {}
        for _ in range(n_fields):
            key = self.string("a metadata key")
            if key in metadata or key in arrays:
                raise self.bad(f"the key {key!r} appears twice")
            value = self.value(key, self.number("I"))
            if isinstance(value, LazyArray):
                arrays[key] = value
            else:
                metadata[key] = value
        if first:
            check_fields(self.path, {**metadata, **arrays})
        tensors = self.tensors(n_tensors, metadata) if check_tensors else ()
        return Parsed(version, self.size, metadata, arrays, tensors)

    def value(self, key: str, kind: int) -> Any:
        if kind in SCALARS:
            if kind == 7:
                return bool(self.number("B"))
            return self.number(SCALARS[kind])
        if kind == _STRING:
            return self.raw_string().decode("utf-8", "replace")
        if kind != _ARRAY:
            raise self.bad(f"the field {key!r} has the unknown type {kind}")
        return self.array(key)

    def array(self, key: str) -> Any:
        kind = self.number("I")
        if kind not in ELEMENTS.get(key, (kind,)):
            raise self.bad(f"the array {key!r} has elements of the wrong type {kind}")
        if kind == _STRING:
            count = self.count(f"strings in {key!r}", 8, _MOST_STRINGS)
            if count > _SMALL:
                return self.long_strings(key, count)
            return [self.raw_string().decode("utf-8", "replace") for _ in range(count)]
        if kind not in SCALARS:
            raise self.bad(f"the array {key!r} has elements of the unsupported type {kind}")
        width = _STRUCTS[SCALARS[kind]].size
        count = self.count(f"elements in {key!r}", width)
        if count > _SMALL:
            self.at += count * width
            return LazyArray(kind, count, self.at - count * width, self.at)
        code = "B" if kind == 7 else SCALARS[kind]
        return list(struct.unpack(f"<{count}{code}", self.take(count * width)))

    def long_strings(self, key: str, count: int) -> LazyArray:
        """Find the end of an array of strings."""
        start = self.at
        for raw, digest in seen.get((key, count)):
            if start + len(raw) <= self.size and self.fetch(start, len(raw)) == raw:
                self.at = start + len(raw)
                return LazyArray(_STRING, count, start, self.at, digest)
        left = count
        while left:
            offset = self.look(min(8, self.size - self.at))
            passed, offset = skip_strings(self.piece, offset, left)
            if not passed:
                raise self.bad(f"the header ends early, in {key!r}")
            left -= passed
            self.at = self.base + offset
            if self.at > self.size:
                raise self.bad(f"a string in {key!r} reaches past the end of the file")
        length = self.at - start
        if length > _MOST_BYTES:
            raise self.bad(f"the array {key!r} has {length} bytes")
        digest = seen.add((key, count), self.fetch(start, length))
        return LazyArray(_STRING, count, start, self.at, digest)

    def tensors(self, count: int, metadata: Mapping[str, Any]) -> tuple[TensorInfo, ...]:
        infos, names = [], set()
        u64, u32 = _STRUCTS["Q"].unpack_from, _STRUCTS["I"].unpack_from
        piece = b""
        for _ in range(count):
            start = self.at - self.base
            if start + _LONGEST_INFO > len(piece):
                start = self.look(min(_LONGEST_INFO, self.size - self.at))
                piece = self.piece
            try:
                (length,) = u64(piece, start)
                name = piece[start + 8 : start + 8 + length].decode("utf-8")
                if length > 63 or name in names:
                    raise self.bad(f"the tensor name {name[:70]!r} is repeated or too long")
                (n_dims,) = u32(piece, start + 8 + length)
                if not 1 <= n_dims <= 4:
                    raise self.bad(f"the tensor {name!r} has {n_dims} dimensions")
                *shape, kind, offset = _SHAPES[n_dims].unpack_from(piece, start + 12 + length)
            except UnicodeDecodeError:
                raise self.bad("a tensor name is not UTF-8 text") from None
            except struct.error:
                raise self.bad(f"the header ends early, at byte {self.size}") from None
            names.add(name)
            infos.append((name, tuple(shape), kind, offset))
            self.at += 12 + length + _SHAPES[n_dims].size
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
        if kind in TYPES:
            label, block_bytes, block = TYPES[kind]
            if shape[0] % block:
                raise self.bad(f"rows of the tensor {name!r} are not whole {label} blocks")
            nbytes: int | None = elements // block * block_bytes
        elif kind in UNKNOWN_TYPES:
            label, nbytes = f"type{kind}", None
        else:
            raise self.bad(f"the tensor {name!r} has the unknown type {kind}")
        missing = base + offset + (nbytes or 0) - self.size
        if missing > 0:
            raise ModelFileError(
                f"{self.path} is cut short: {missing:,} bytes are missing. Download it again."
            )
        return TensorInfo(name, shape, label, base + offset, nbytes)
