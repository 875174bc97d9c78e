"""GGUF headers, read and checked without llama.cpp and without touching weights.

llama.cpp's own parser may abort the process on a damaged file, so every file passes here
first. The `gguf` package's reader needs 2 s for 49,152 tokens and 10 s for 262,144; arrays
are skipped here and decoded only when asked for. The parser is in `header_reader.py`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specchat.engine.ggml_types import FILE_TYPES
from specchat.engine.header_checks import check_tokens, damaged
from specchat.engine.header_reader import SCALARS, LazyArray, TensorInfo, parse
from specchat.engine.model_files import open_model
from specchat.errors import ModelFileError

__all__ = ["Header", "TensorInfo", "part_names", "read_header"]

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MOST_PARTS = 1000


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
    _arrays: Mapping[str, LazyArray] = field(repr=False, default_factory=dict)

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
    def step_bytes(self) -> int:
        """Bytes of weights that a call with one token reads: of the embedding only a row,
        unless it is the output matrix too, and of the experts only those used.
        """
        names = {t.name for t in self.tensors}
        experts = int(self.get("expert_count", 0))
        used = min(int(self.get("expert_used_count", 0)), experts) or experts
        total = 0.0
        for t in self.tensors:
            if t.name == "token_embd.weight" and "output.weight" in names:
                continue
            share = used / experts if experts and "_exps." in t.name else 1.0
            total += share * (t.nbytes or 0)
        return int(total)

    @cached_property
    def parameters(self) -> int:
        return sum(self._by_type.values())

    @cached_property
    def _by_type(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for t in self.tensors:
            sums[t.type] = sums.get(t.type, 0) + math.prod(t.shape)
        return sums

    @property
    def quantisation(self) -> str:
        """The type that most weights have, e.g. "Q4_K"."""
        return max(self._by_type, key=lambda name: self._by_type[name], default="none")

    @property
    def file_type(self) -> str:
        """How the file as a whole is quantised, e.g. "Q4_K_M": a mix of tensor types."""
        kind = self.metadata.get("general.file_type")
        return FILE_TYPES.get(kind, self.quantisation) if type(kind) is int else self.quantisation

    @property
    def tokenizer_identity(self) -> tuple[Any, ...]:
        """What besides token texts must agree between target and draft: tokenizer kind,
        pre-tokenizer, BOS and EOS ids, and whether BOS is put first.
        """
        get = self.metadata.get
        spm = get("tokenizer.ggml.model") == "llama"  # llama.cpp's default differs by kind
        return (
            get("tokenizer.ggml.model"),
            get("tokenizer.ggml.pre", "default"),
            get("tokenizer.ggml.bos_token_id"),
            get("tokenizer.ggml.eos_token_id"),
            bool(get("tokenizer.ggml.add_bos_token", spm)),
        )

    @property
    def recurrent(self) -> bool:
        """Whether some layers keep a running state instead of a KV cache."""
        kinds = tuple(f"{self.architecture}.{kind}." for kind in ("ssm", "wkv", "shortconv", "kda"))
        return any(key.startswith(kinds) for key in self.metadata)

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

    def require_loadable(self) -> None:
        """What is too slow to ask of every file that is listed. Raises ModelFileError."""
        check_tokens(self.path, self.tokens())

    def token_types(self) -> npt.NDArray[np.int32]:
        """Every token's type (1 normal, 3 control, 4 user-defined, 6 byte); empty if absent."""
        array = self._arrays.get("tokenizer.ggml.token_type")
        if array is None:
            return np.array(self.metadata.get("tokenizer.ggml.token_type", ()), np.int32)
        return np.frombuffer(self._raw(array), f"<{SCALARS[array.kind]}").astype(np.int32)

    def vocabulary_fingerprint(self) -> str:
        """Equal for files whose tokenizer kind and token texts are byte for byte equal."""
        digest = hashlib.sha256(str(self.metadata.get("tokenizer.ggml.model")).encode())
        array = self._arrays.get("tokenizer.ggml.tokens")
        if array is None:
            digest.update(repr(self.tokens()).encode())
        else:
            digest.update(array.digest or hashlib.sha256(self._raw(array)).digest())
        return digest.hexdigest()[:16]

    def _raw(self, array: LazyArray) -> bytes:
        with open_model(self.path) as file:
            try:
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
    parsed = parse(path, check_tensors, first=True)
    tensors = parsed.tensors
    count = parsed.metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        if parsed.metadata.get("split.no") != 0:
            raise ModelFileError(f"{path} is not the first part of a split model; name the first.")
        names = part_names(path.name)
        if len(names) != count or names[0] != path.name:
            raise ModelFileError(
                f"{path} says it is part 1 of {count}, but is not named "
                f"…-00001-of-{count:05d}.gguf."
            )
        for number, part in enumerate(map(path.with_name, names[1:]), 1):
            if not part.is_file():
                raise ModelFileError(f"{path.name} needs {count} parts, but {part} is missing.")
            other = parse(part, check_tensors, first=False)
            place = other.metadata.get("split.no"), other.metadata.get("split.count")
            if place != (number, count):
                raise damaged(part, f"it is not part {number + 1} of {count} inside")
            tensors += other.tensors
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise damaged(path, "two of its parts hold the same tensor")
    return Header(path, parsed.version, parsed.size, parsed.metadata, tensors, parsed.arrays)


def part_names(name: str) -> list[str]:
    """The names of all parts of the split GGUF that `name` is a part of, else just `name`."""
    match = _PART.fullmatch(name)
    count = int(match[3]) if match else 0
    if match is None or not 1 <= count <= _MOST_PARTS:
        return [name]
    return [f"{match[1]}-{i:05d}-of-{match[3]}.gguf" for i in range(1, count + 1)]
