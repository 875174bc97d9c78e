"""The draft as a GGUF that llama.cpp loads, with the target's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specchat.distill.shape import CONTEXT, EPS, HEAD, ROPE_BASE, TYPES, Shape
from specchat.engine.header import Header
from specchat.gguf_files import copy_fields, finish, gguf_package, written_whole

_COPIED = ("tokenizer.", "general.license", "general.languages")


def write_draft(
    target: Header,
    output: Path,
    shape: Shape,
    weights: Mapping[str, npt.NDArray[np.float32]],
    kind: str,
) -> Path:
    """Write `weights` (float32, by GGUF tensor name, (out, in) shapes) as `kind`, one of
    `shape.TYPES`; norms stay float32. Everything about the vocabulary, and the chat template,
    is copied from `target`. The file appears whole or not at all.
    """
    assert kind in TYPES
    gguf = gguf_package("distill")
    reader = gguf.GGUFReader(str(target.path))

    def make(path: Path) -> None:
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_name(f"Draft for {target.name}")
        writer.add_description(f"Trained on what {target.name} says, to draft for it.")
        writer.add_file_type(
            gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"].value
        )
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_context_length(CONTEXT)
        writer.add_vocab_size(shape.vocabulary)
        writer.add_embedding_length(shape.width)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.feed)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.heads)
        writer.add_rope_dimension_count(HEAD)
        writer.add_rope_freq_base(ROPE_BASE)
        writer.add_layer_norm_rms_eps(EPS)
        copy_fields(reader, writer, {}, lambda key: key.startswith(_COPIED))
        for name, values in weights.items():
            stored = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else kind]
            data = gguf.quantize(np.ascontiguousarray(values, np.float32), stored)
            writer.add_tensor(name, data, raw_dtype=stored)
        finish(writer)

    return written_whole(output, make)
