"""Making a context, and putting LoRA adapters on it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as C

from specchat.engine.llama.backend import default_threads, last_error
from specchat.engine.llama.options import FLASH_ATTENTION, KV_TYPES, ModelOptions
from specchat.errors import ModelLoadError


def make_context(path: Path, model: Any, options: ModelOptions) -> Any:
    threads = options.threads or default_threads()
    params = C.llama_context_default_params()
    per_sequence = options.n_ctx or min(C.llama_model_n_ctx_train(model), 8192)
    params.n_ctx = per_sequence * options.sequences
    params.n_batch = params.n_ubatch = max(options.prefill_chunk, options.max_outputs)
    params.n_seq_max = options.sequences
    params.n_outputs_max = options.max_outputs * options.sequences
    params.kv_unified = True  # sequences share one pool of cells
    params.n_threads = threads
    params.n_threads_batch = options.threads_batch or threads
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
    params.type_k, params.type_v = KV_TYPES[options.type_k], KV_TYPES[options.type_v]
    params.swa_full = True  # a pruned window could not be rolled back
    params.no_perf = True
    if C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model):
        params.n_rs_seq = options.max_outputs
    context = C.llama_init_from_model(model, params)
    if not context:
        raise ModelLoadError(
            f"Cannot make a context of {params.n_ctx} tokens for {path.name}: {last_error()}. "
            "A smaller --ctx needs less memory."
        )
    return context


def apply_lora(path: Path, model: Any, context: Any, options: ModelOptions) -> None:
    if not options.lora:
        return
    adapters = []
    for lora, _scale in options.lora:
        if not Path(lora).is_file():
            raise ModelLoadError(f"LoRA file {lora} does not exist.")
        adapter = C.llama_adapter_lora_init(model, os.fsencode(lora))
        if not adapter:
            raise ModelLoadError(f"LoRA {lora} does not fit {path.name}: {last_error()}")
        adapters.append(adapter)
    pointers = (C.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
    scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in options.lora))
    if C.llama_set_adapters_lora(context, pointers, len(adapters), scales) != 0:
        raise ModelLoadError(f"llama.cpp refused the LoRA for {path.name}: {last_error()}")
