"""How to load a GGUF, and the names llama.cpp's settings have here."""

from __future__ import annotations

from dataclasses import dataclass

import llama_cpp.llama_cpp as C

from specchat.errors import BadRequestError

KV_TYPES = {
    "f32": C.GGML_TYPE_F32,
    "f16": C.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16; the binding does not name it
    "q8_0": C.GGML_TYPE_Q8_0,
    "q5_1": C.GGML_TYPE_Q5_1,
    "q5_0": C.GGML_TYPE_Q5_0,
    "q4_1": C.GGML_TYPE_Q4_1,
    "q4_0": C.GGML_TYPE_Q4_0,
}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load a GGUF. Sizes are tokens.

    `n_ctx` is for each of the `sequences`; 0 means the model's training length (at most 8192,
    to bound memory). `prefill_chunk`
    is the most tokens one call evaluates, `max_outputs` the most logit rows it returns.
    `lora` holds (path, scale) pairs. `threads` 0 means one per physical core.
    """

    n_ctx: int = 0
    n_gpu_layers: int = -1
    threads: int = 0
    threads_batch: int = 0
    flash_attention: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    mmap: bool = True
    mlock: bool = False
    lora: tuple[tuple[str, float], ...] = ()
    prefill_chunk: int = 256
    max_outputs: int = 32
    sequences: int = 1

    def __post_init__(self) -> None:
        """Raises BadRequestError naming the option that is out of range."""
        for name, low, high in (
            ("n_ctx", 32, 2**31 - 1),
            ("threads", 0, 1024),
            ("threads_batch", 0, 1024),
            ("prefill_chunk", 1, 65536),
            ("max_outputs", 1, 65536),
            ("sequences", 1, 256),
        ):
            value = getattr(self, name)
            if not low <= value <= high and (name, value) != ("n_ctx", 0):
                raise BadRequestError(f"{name} must be {low} to {high}, not {value}.", name)
        for name, known in (
            ("type_k", KV_TYPES),
            ("type_v", KV_TYPES),
            ("flash_attention", FLASH_ATTENTION),
        ):
            if getattr(self, name) not in known:
                raise BadRequestError(
                    f"{name} is {getattr(self, name)!r}; choose from {', '.join(known)}.", name
                )
