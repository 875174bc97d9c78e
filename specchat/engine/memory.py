"""How much memory a model will need, told from its header before anything is loaded.

Weights, KV cache and recurrent state are exact for the usual architectures, and else an upper
bound; llama.cpp's working buffers are a rough guess, for they depend on its graph allocator.
Sizes follow llama.cpp (llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-hparams.cpp).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.engine.ggml_types import KV_BYTES
from specchat.engine.header import Header

if TYPE_CHECKING:
    from specchat.engine.llama import ModelOptions

_PAD = 256  # llama.cpp rounds the number of cells up to a multiple of this
# Architectures whose state llama.cpp keeps once per drafted token (llama-arch.cpp,
# llm_arch_supports_rs_rollback).
_SNAPSHOTS = {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h",
              "nemotron_h_moe", "lfm2", "lfm2moe", "bailingmoe3"}  # fmt: skip
_STATE_TENSORS = ("ssm", "shortconv", "time_mix")


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes. `state` is what recurrent layers keep; `buffers` are a rough guess.

    Not counted: the second copy that llama.cpp keeps of tied embeddings where it puts the
    output matrix elsewhere (a GPU) or repacks it for the CPU.
    """

    weights: int
    kv: int
    state: int
    buffers: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.state + self.buffers

    def __add__(self, other: MemoryNeed) -> MemoryNeed:
        return MemoryNeed(
            self.weights + other.weights,
            self.kv + other.kv,
            self.state + other.state,
            self.buffers + other.buffers,
        )


def memory_need(header: Header, options: ModelOptions, n_ctx: int = 0) -> MemoryNeed:
    """What loading `header`'s model with `options` takes, LoRA adapters aside.

    `n_ctx` tokens for each sequence, 0 what `options` say (a draft gets its target's).
    """
    cells = _padded((n_ctx or default_context(header, options)) * options.sequences)
    layers = _layers(header)
    return MemoryNeed(
        weights=header.weight_bytes,
        kv=cells * _kv_bytes_per_token(header, layers, options),
        state=_state_bytes(header, layers, options),
        buffers=_buffer_bytes(header, options, cells if any(map(_attends, layers.values())) else 0),
    )


def default_context(header: Header, options: ModelOptions) -> int:
    """Tokens of one sequence's context, as `make_context` chooses them."""
    return options.n_ctx or min(header.context_length or 8192, 8192)


def _padded(cells: int) -> int:
    return (cells + _PAD - 1) // _PAD * _PAD


def _number(header: Header, key: str, default: int = 0) -> int:
    """A size of the architecture; `default` where it is missing or no size."""
    value = header.get(key, default)
    return value if type(value) is int and value >= 0 else default


def _at(value: Any, layer: int, default: int) -> int:
    """A value that may differ by layer."""
    if isinstance(value, list):
        value = value[layer] if layer < len(value) else default
    return int(value) if isinstance(value, int) and value >= 0 else default


def _most(header: Header, key: str) -> int:
    """The largest of sizes that may differ by layer; 0 where there is none."""
    value = header.get(key, 0)
    return max(_at(value, i, 0) for i in range(len(value) if isinstance(value, list) else 1))


def _layers(header: Header) -> dict[int, set[str]]:
    """The tensors of each block, by the block's number: which layers attend, which recur."""
    layers: dict[int, set[str]] = {}
    for tensor in header.tensors:
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        if tensor.name.startswith("blk.") and block.isdecimal():
            layers.setdefault(int(block), set()).add(rest)
    return layers


def _recurs(names: set[str]) -> bool:
    return any(name.startswith(_STATE_TENSORS) for name in names)


def _attends(names: set[str]) -> bool:
    """Some recurrent layers have an `attn_qkv` of their own, but no `attn_k`."""
    keys = ("attn_k.", "attn_kv_a") if _recurs(names) else ("attn_k", "attn_qkv")
    return any(name.startswith(keys) for name in names)


def _kv_bytes_per_token(header: Header, layers: dict[int, set[str]], options: ModelOptions) -> int:
    """Σ over attending layers of KV heads × (key width + value width), in the cache's types.

    Layers with a sliding window count in full: specchat keeps all of it (swa_full), so that
    rejected tokens can leave the cache. With multi-head latent attention only keys are kept.
    """
    heads = _most(header, "attention.head_count")
    width = _number(header, "embedding_length") // (heads or 1)
    full = [_number(header, f"attention.{part}_length", width) for part in ("key", "value")]
    sliding = [
        _number(header, f"attention.{part}_length_swa", size)
        for part, size in zip(("key", "value"), full, strict=True)
    ]
    pattern = header.get("attention.sliding_window_pattern")
    kv_heads = header.get("attention.head_count_kv", header.get("attention.head_count", 0))
    latent = header.get("attention.key_length_mla") is not None
    own = len(layers) - _number(header, "attention.shared_kv_layers")
    if header.architecture == "gemma3n":  # its files do not say so
        own = 20
    total = 0.0
    for layer, names in layers.items():
        if not _attends(names) or layer >= own:
            continue
        k, v = map(max, full, sliding)
        if isinstance(pattern, list):
            k, v = sliding if _at(pattern, layer, 0) else full
        per_head = k * KV_BYTES[options.type_k] + (0 if latent else v * KV_BYTES[options.type_v])
        total += _at(kv_heads, layer, heads) * per_head
    return int(total)


def _state_bytes(header: Header, layers: dict[int, set[str]], options: ModelOptions) -> int:
    """Convolution and state of each recurrent layer and sequence, in 32-bit floats, once more
    for every token that may be taken back where llama.cpp keeps snapshots.
    """
    width = _number(header, "embedding_length")
    inner, state = _number(header, "ssm.inner_size"), _number(header, "ssm.state_size")
    groups = _number(header, "ssm.group_count")
    taps = max(_number(header, "ssm.conv_kernel") - 1, 0)
    if head := _number(header, "wkv.head_size"):
        values = (_number(header, "token_shift_count", 2) + head) * width
    elif short := _number(header, "shortconv.l_cache"):
        values = (short - 1) * width
    elif head := _number(header, "kda.head_dim"):
        values = (3 * taps + head) * head * _most(header, "attention.head_count")
    else:
        values = taps * (inner + 2 * groups * state) + state * inner
    snapshots = options.max_outputs if header.architecture in _SNAPSHOTS else 0
    recurrent = sum(_recurs(names) for names in layers.values())
    return 4 * values * recurrent * options.sequences * (1 + snapshots)


def _buffer_bytes(header: Header, options: ModelOptions, cells: int) -> int:
    """A guess: the logits returned, the attention mask, and the largest of what is computed
    one after the other (a block's results, its attention scores, the logits).
    """
    batch = max(options.prefill_chunk, options.max_outputs)
    logits = 4 * min(batch, options.max_outputs * options.sequences) * header.vocabulary_size
    experts = _number(header, "expert_used_count") * _most(header, "expert_feed_forward_length")
    inner = max(_most(header, "feed_forward_length"), experts, _number(header, "ssm.inner_size"))
    block = 4 * batch * (4 * _number(header, "embedding_length") + 2 * inner)
    scores = 4 * batch * cells * _most(header, "attention.head_count")
    if options.flash_attention != "off":  # it never writes them down
        scores = 0
    return logits + 2 * batch * cells + max(logits, block, scores)


def free_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process can still get without swapping: what the machine has free, or less
    where a container (control group, in `groups`) is allowed less.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):  # no such control group, or "max"
            left = int((groups / limit).read_text()) - int((groups / used).read_text())
            lines = (groups / limit).with_name("memory.stat").read_text().splitlines()
            stat = dict(line.split(maxsplit=1) for line in lines)
            free = min(free, max(0, left + int(stat.get(cached, 0))))
    return free
