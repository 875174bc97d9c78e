"""What llama.cpp asserts of a header, or takes on trust: asked first, for it would abort."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specchat.errors import ModelFileError

# These must be arrays of these element types.
ELEMENTS = {
    "tokenizer.ggml.tokens": (8,),  # strings
    "tokenizer.ggml.merges": (8,),
    "tokenizer.ggml.scores": (6,),
    "tokenizer.ggml.token_type": (4, 5),
    "tokenizer.ggml.precompiled_charsmap": (0, 1),
}
# Whole numbers, of the architecture; some have one per layer instead.
_SIZES = ("block_count", "context_length", "embedding_length", "attention.key_length",
          "attention.value_length", "expert_count", "expert_group_count",
          "expert_group_used_count", "nextn_predict_layers")  # fmt: skip
_LAYER_SIZES = ("attention.head_count", "attention.head_count_kv", "expert_used_count")
_MOST_LAYERS, _MOST_EXPERTS = 512, 1024  # llama-hparams.h
_WIDTHS = ("attention.head_count", "attention.head_count_kv", "attention.key_length",
           "attention.value_length")  # fmt: skip
_MOST_WIDTH = 1 << 15  # llama.cpp multiplies two of them in 32 bits


def damaged(path: Path, what: str) -> ModelFileError:
    return ModelFileError(f"{path} is damaged: {what}. Download it again.")


def check_fields(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raises ModelFileError for what llama.cpp needs and would not fail on gracefully.

    Long arrays in `metadata` have a `count` instead of a length.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise damaged(path, "general.architecture is missing")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or "tokenizer.ggml.model" not in metadata:
        raise ModelFileError(f"{path} has no tokenizer, so it cannot chat.")
    for key in ELEMENTS:
        if key in metadata and _count(metadata[key]) is None:
            raise damaged(path, f"{key} is not a list")
    n = _count(tokens) or 0
    if n == 0:
        raise damaged(path, "tokenizer.ggml.tokens is empty")
    for name in ("token_type", "scores"):
        length = _count(metadata.get(f"tokenizer.ggml.{name}"))
        if length is not None and length < n:
            raise damaged(path, f"tokenizer.ggml.{name} has {length} entries for {n} tokens")
    for name in (*_SIZES, *_LAYER_SIZES):
        key = f"{architecture}.{name}"
        value = metadata.get(key, 0)
        values = value if isinstance(value, list) and name in _LAYER_SIZES else [value]
        if not all(type(v) is int and v >= 0 for v in values):
            raise damaged(path, f"{key} is {value!r:.40}, not a size")
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise damaged(path, f"general.alignment is {alignment!r}, not a power of two")
    _check_layers(path, architecture, metadata)


def _count(value: Any) -> int | None:
    if isinstance(value, list):
        return len(value)
    count = getattr(value, "count", None)
    return count if isinstance(count, int) else None


def _check_layers(path: Path, architecture: str, metadata: Mapping[str, Any]) -> None:
    """The limits of llama_model::load_hparams."""

    def get(name: str, default: int = 0) -> Any:
        return metadata.get(f"{architecture}.{name}", default)

    layers = get("block_count", 1)
    if not 1 <= layers <= _MOST_LAYERS:
        raise damaged(path, f"{architecture}.block_count is {layers}, not 1 to {_MOST_LAYERS}")
    if get("nextn_predict_layers") > layers:
        raise damaged(path, f"{architecture}.nextn_predict_layers is more than its {layers} blocks")
    for name in _WIDTHS:
        value = get(name)
        if max(value, default=0) > _MOST_WIDTH if isinstance(value, list) else value > _MOST_WIDTH:
            raise damaged(path, f"{architecture}.{name} is {value!r:.40}")
    used = get("expert_used_count")
    used = max(used, default=0) if isinstance(used, list) else used
    experts, groups = get("expert_count"), get("expert_group_count")
    if architecture.startswith("hunyuan") and experts <= 1:
        return  # read as none
    if experts > _MOST_EXPERTS or used > experts or (experts > 0 and used == 0):
        raise damaged(path, f"it uses {used} of {experts} experts")
    if groups and (groups >= experts or experts % groups):
        raise damaged(path, f"{experts} experts do not make {groups} groups")
    if groups > 1 and not 0 < get("expert_group_used_count") < groups:
        raise damaged(path, f"it does not use 1 to {groups - 1} of its {groups} groups of experts")


def check_tokens(path: Path, tokens: Iterable[bytes]) -> None:
    """Raises ModelFileError where two tokens have the same text. llama.cpp reads a text up to
    its first zero byte, and replaces empty ones.
    """
    seen: dict[bytes, int] = {}
    for token, text in enumerate(tokens):
        text = text.partition(b"\0")[0]
        if text and seen.setdefault(text, token) != token:
            shown = text.decode("utf-8", "replace")
            raise damaged(path, f"its tokens {seen[text]} and {token} are both {shown!r:.40}")
