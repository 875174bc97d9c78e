"""Constructed models for benchmarks: an expensive target for a small real draft.

No large model with a small sibling fits everywhere, so a small one is made deep: each block
is followed by clones whose residual outputs are scaled by eps. With eps 0 the result
computes the source's function at `factor` times its cost; a small eps makes the two
disagree. Figures from such a target are figures of a constructed target, and say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specchat.default_model import default_model
from specchat.engine.header import read_header
from specchat.engine.llama import quantize
from specchat.errors import BadRequestError
from specchat.gguf_files import copy_fields, finish, gguf_package, written_whole

# Block layouts of ggml-common.h: bytes of a block, and where its fp16 scales lie in it.
_SCALES = {
    "Q4_0": (18, (0,)),
    "Q4_1": (20, (0, 2)),
    "Q5_0": (22, (0,)),
    "Q5_1": (24, (0, 2)),
    "Q8_0": (34, (0,)),
    "Q4_K": (144, (0, 2)),
    "Q5_K": (176, (0, 2)),
    "Q6_K": (210, (208,)),
}
_RESIDUAL_OUTPUTS = ("attn_output.weight", "ffn_down.weight")


def _scaled(tensor: Any, eps: float) -> npt.NDArray[Any]:
    """A copy of a tensor's data times `eps`, in the tensor's own type."""
    name = tensor.tensor_type.name
    data = np.array(tensor.data)
    if name in ("F32", "F16"):
        return (data.astype(np.float32) * eps).astype(data.dtype)
    if name == "BF16":
        wide = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32) * np.float32(eps)
        rounded = wide.view(np.uint32) + 0x8000  # to nearest
        return (rounded >> 16).astype(np.uint16).view(data.dtype).reshape(data.shape)
    if name not in _SCALES:
        raise BadRequestError(f"Tensors of type {name} cannot be scaled; use another type.")
    size, places = _SCALES[name]
    blocks = data.reshape(-1, size)
    for at in places:
        half = blocks[:, at : at + 2].copy().view(np.float16)
        blocks[:, at : at + 2] = (half.astype(np.float32) * eps).astype(np.float16).view(np.uint8)
    return data


def deepen(source: Path, target: Path, factor: int, eps: float) -> None:
    """Write `source` with every block followed by `factor` − 1 clones scaled by `eps`.

    Raises BadRequestError for an architecture or type it cannot deepen.
    """
    gguf = gguf_package("bench")
    header = read_header(source)
    if header.architecture != "llama" or factor < 1:
        raise BadRequestError(f"Cannot deepen {header.architecture} models by {factor}.")
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), header.architecture)
    blocks = int(header.get("block_count"))
    name = f"{header.name} constructed x{factor} eps {eps:g}"
    copy_fields(reader, writer, {"llama.block_count": blocks * factor, "general.name": name})
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        _, block, rest = tensor.name.split(".", 2)
        for clone in range(factor):
            changed = clone and rest in _RESIDUAL_OUTPUTS
            writer.add_tensor(
                f"blk.{int(block) * factor + clone}.{rest}",
                _scaled(tensor, eps) if changed else tensor.data,
                raw_dtype=tensor.tensor_type,
            )
    finish(writer)


def random_draft(source: Path, target: Path, width: int = 64, blocks: int = 2) -> None:
    """Write a hostile draft: the vocabulary of `source`, weights drawn at random."""
    gguf = gguf_package("bench")
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), "llama")
    copy_fields(
        reader,
        writer,
        {
            "general.name": "random weights, constructed",
            "general.file_type": 0,
            "llama.block_count": blocks,
            "llama.embedding_length": width,
            "llama.feed_forward_length": 2 * width,
            "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 2,
            "llama.rope.dimension_count": width // 2,
        },
    )
    rng = np.random.default_rng(1)
    vocabulary = read_header(source).vocabulary_size
    shapes = {"token_embd.weight": (vocabulary, width), "output.weight": (vocabulary, width)}
    for block in range(blocks):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{block}.{part}.weight"] = (width, width)
        shapes[f"blk.{block}.ffn_gate.weight"] = (2 * width, width)
        shapes[f"blk.{block}.ffn_up.weight"] = (2 * width, width)
        shapes[f"blk.{block}.ffn_down.weight"] = (width, 2 * width)
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(scale=shape[1] ** -0.5, size=shape).astype(np.float32))
    norms = [f"blk.{b}.{part}_norm.weight" for b in range(blocks) for part in ("attn", "ffn")]
    for name in (*norms, "output_norm.weight"):
        writer.add_tensor(name, np.ones(width, np.float32))
    finish(writer)


def _made(path: Path, make: Any) -> Path:
    """`path`, built by `make(temporary path)` unless it exists."""
    return path if path.exists() else written_whole(path, make)


def standard_fixture(
    folder: Path, kind: str = "BF16", factor: int = 6, eps: float = 0.02
) -> tuple[Path, Path]:
    """(target, draft): SmolLM2 as `kind` deepened ×`factor`, and SmolLM2 as Q4_0.

    Built once into `folder`.
    """
    source = default_model()
    base = _made(folder / f"smollm2-{kind.lower()}.gguf", lambda p: quantize(source, p, kind))
    name = f"smollm2-{kind.lower()}-x{factor}-eps{eps:g}.gguf"
    target = _made(folder / name, lambda p: deepen(base, p, factor, eps))
    draft = _made(folder / "smollm2-q4_0.gguf", lambda p: quantize(source, p, "Q4_0"))
    return target, draft


def hostile_draft(folder: Path) -> Path:
    """A draft of random weights for SmolLM2's vocabulary. Built once into `folder`."""
    return _made(folder / "random-draft.gguf", lambda p: random_draft(default_model(), p))
