"""llama.cpp through its C API: the only file that touches ctypes.

Owns weights, context, batch, tokenizer and grammar of one GGUF. Every return code is
checked; llama.cpp's log goes to a file, never to the terminal.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt
import platformdirs

from specchat.errors import (
    BadRequestError,
    Cancelled,
    DecodeError,
    GrammarError,
    LoadCancelled,
    ModelLoadError,
    RollbackError,
)

from .gbnf import check
from .model import Evaluate, Logits

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
_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
_LOG_LIMIT = 4 * 1024 * 1024


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


class _Log:
    """Receives llama.cpp's log: everything to a file, the last errors kept for messages."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)
        self.file: TextIO | None = None
        self.path = Path(platformdirs.user_log_dir("specchat")) / "llama.log"
        self.callback = C.llama_log_callback(self._write)
        self.level = 0

    def install(self) -> None:
        if self.file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if self.path.exists() and self.path.stat().st_size > _LOG_LIMIT:
                    self.path.replace(self.path.with_suffix(".old.log"))
                self.file = self.path.open("a", encoding="utf-8", errors="replace")
            except OSError:  # a read-only home must not keep the model from loading
                self.file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        C.llama_log_set(self.callback, None)

    def _write(self, level: int, text: bytes, _data: Any) -> None:
        line = text.decode("utf-8", "replace")
        self.level = level if level != 5 else self.level  # 5 continues the previous line
        if self.level == _ERROR_LEVEL and line.strip():
            self.errors.append(line.strip())
        if self.file is not None:
            with contextlib.suppress(OSError, ValueError):
                self.file.write(line)
                self.file.flush()


_log = _Log()


@functools.cache
def _start_backend() -> None:
    _log.install()
    C.llama_backend_init()


@functools.cache
def _flag_callback() -> Any:
    """A native `bool f(void *data)` that is true when data's first byte is not zero.

    ggml asks the abort callback before every graph node; a Python callback would take the
    interpreter lock a thousand times per call. C's strlen over a two-byte buffer answers
    the same question without Python: 0 for "", 1 for "x".
    """
    libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    return ctypes.cast(libc.strlen, C.ggml_abort_callback)


class Tokenizer:
    """Text to token ids and back, for one vocabulary.

    Valid while the model that made it is open.
    """

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self.n_vocab: int = C.llama_vocab_n_tokens(vocab)
        self.bos = self._id(C.llama_vocab_bos(vocab))
        self.eos = self._id(C.llama_vocab_eos(vocab))
        self.add_bos = bool(C.llama_vocab_get_add_bos(vocab))
        self.bos_text = self.text(self.bos) if self.bos is not None else ""
        self.eos_text = self.text(self.eos) if self.eos is not None else ""
        self._pieces: dict[int, bytes] = {}
        self._special: dict[str, int] | None = None
        self._eog: dict[int, bool] = {}

    def _id(self, token: int) -> int | None:
        return token if 0 <= token < self.n_vocab else None

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_vocab:  # llama.cpp would end the process
            raise BadRequestError(f"There is no token {token}; this model has {self.n_vocab}.")

    def text(self, token: int) -> str:
        """The vocabulary entry's own text, e.g. "<|im_end|>"."""
        self._check(token)
        return bytes(C.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of `text`, never adding BOS or EOS.

        With `parse_special` false, text that looks like a control token stays text.
        """
        raw = text.encode("utf-8", "replace")
        size = len(raw) + 8
        while True:
            buffer = (C.llama_token * size)()
            n = C.llama_tokenize(self._vocab, raw, len(raw), buffer, size, False, parse_special)
            if n >= 0:
                return list(buffer[:n])
            if n == -(2**31):
                raise BadRequestError("The text is too long to tokenise.")
            size = -n

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text: empty for control tokens."""
        cached = self._pieces.get(token)
        if cached is None:
            self._check(token)
            cached = self._pieces[token] = self._render(token, special=False)
        return cached

    def _render(self, token: int, *, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = C.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    def is_eog(self, token: int) -> bool:
        """Whether `token` ends a generation (EOS, end of turn, ...)."""
        cached = self._eog.get(token)
        if cached is None:
            self._check(token)
            cached = self._eog[token] = bool(C.llama_vocab_is_eog(self._vocab, token))
        return cached

    def special_texts(self) -> Mapping[str, int]:
        """Text of every token recognised only with `parse_special`, with its id."""
        if self._special is None:
            hidden = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
            self._special = {
                text: token
                for token in range(self.n_vocab)
                if C.llama_vocab_get_attr(self._vocab, token) & hidden
                and (text := self.text(token))
            }
        return self._special


class Grammar:
    """A GBNF grammar's state: which tokens may come next. Close it, or use `with`.

    Raises GrammarError for what `gbnf.check` or llama.cpp refuses.
    """

    def __init__(self, tokenizer: Tokenizer, source: str, *, _sampler: Any = None) -> None:
        self._tokenizer = tokenizer
        self.source = source
        if _sampler is None:
            check(source)
            _log.errors.clear()
            raw = source.encode("utf-8", "replace")
            _sampler = C.llama_sampler_init_grammar(tokenizer._vocab, raw, b"root")
            if not _sampler:
                detail = "; ".join(_log.errors) or "llama.cpp gave no reason"
                raise GrammarError(f"llama.cpp refused the grammar: {detail}")
        self._sampler = _sampler

    def allowed(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of `ids` the grammar accepts next: bool array of the same shape."""
        data = np.zeros(len(ids), dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
        data["id"] = ids
        array = C.llama_token_data_array(
            data=data.ctypes.data_as(C.llama_token_data_p), size=len(ids), selected=-1, sorted=False
        )
        C.llama_sampler_apply(self._sampler, ctypes.byref(array))
        allowed: npt.NDArray[np.bool_] = np.isfinite(data["logit"])
        return allowed

    def accept(self, token: int) -> None:
        """Advance past `token`, which must be allowed (raises GrammarError otherwise)."""
        if not self.allowed(np.array([token], dtype=np.int32))[0]:
            # llama.cpp would throw a C++ exception through ctypes and end the process.
            raise GrammarError(f"Token {token} does not fit the grammar at this point.")
        C.llama_sampler_accept(self._sampler, token)

    def clone(self) -> Grammar:
        return Grammar(self._tokenizer, self.source, _sampler=C.llama_sampler_clone(self._sampler))

    def close(self) -> None:
        if self._sampler:
            C.llama_sampler_free(self._sampler)
            self._sampler = None

    def __enter__(self) -> Grammar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class LlamaCache:
    """The KV cache of one sequence of a `LlamaModel`; see `model.Cache`."""

    model: LlamaModel
    seq_id: int
    tokens: list[int] = field(default_factory=list)
    # For models with a recurrent state:
    _checkpoint: tuple[int, Any] | None = None  # (length, state saved there)
    _last: int = 0  # tokens of the last call: there are snapshots between them only

    def mark(self) -> None:
        """See `model.Cache.mark`."""
        if self.model.rollback != "exact":
            self._checkpoint = self.model._save(self)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises RollbackError if the model cannot."""
        if length < len(self.tokens):
            self.model._truncate(self, length)


class LlamaModel:
    """One GGUF, loaded: weights, one context, its caches. Satisfies `model.Model`.

    `rollback` says how rejected tokens leave the cache: "exact" (removed), "snapshots"
    (recurrent state kept between the tokens of one call), "checkpoint" (state saved before a
    verification or a draft and restored), or "none", with `rollback_reason` saying why. Not
    thread-safe: one thread owns it. `abort()` may be called from any thread.
    """

    def __init__(self, path: Path, options: ModelOptions, model: Any, context: Any) -> None:
        self.path = path
        self.options = options
        self._model, self._context = model, context
        self._memory = C.llama_get_memory(context)
        self.tokenizer = Tokenizer(C.llama_model_get_vocab(model))
        self.n_vocab: int = self.tokenizer.n_vocab
        # One pool of cells serves all sequences: each gets its share.
        share = C.llama_n_ctx(context) // options.sequences
        self.n_ctx: int = min(share, options.n_ctx or share)  # llama.cpp rounds up
        self.size_bytes: int = C.llama_model_size(model)
        self.n_params: int = C.llama_model_n_params(model)
        self._abort = ctypes.create_string_buffer(2)
        C.llama_set_abort_callback(
            context, _flag_callback(), ctypes.cast(self._abort, ctypes.c_void_p)
        )
        self._init_batch()
        self._free_ids = list(range(options.sequences))
        self._view: tuple[int, Logits] = (0, np.empty((0, self.n_vocab), np.float32))
        self.rollback, self.rollback_reason = "exact", ""
        self._probe_rollback()

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: ModelOptions | None = None,
        *,
        progress: Callable[[float], bool] | None = None,
    ) -> LlamaModel:
        """Load weights and make a context.

        `progress` gets a share 0..1 and returns False to cancel. For a split GGUF name its
        first part. Raises ModelLoadError with llama.cpp's own last error, LoadCancelled.
        Validate the file with `header.read_header` first.
        """
        options = options or ModelOptions()
        path = Path(path)
        _start_backend()
        _log.errors.clear()
        cancelled = False
        raised: BaseException | None = None

        def report(share: float, _data: Any) -> bool:
            nonlocal cancelled, raised
            try:
                cancelled = progress is not None and not progress(share)
            except BaseException as error:  # such as Ctrl-C: it must not get lost in C code
                cancelled, raised = True, error
            return not cancelled

        callback = C.llama_progress_callback(report)
        params = C.llama_model_default_params()
        params.n_gpu_layers = options.n_gpu_layers
        params.load_mode = 2 * options.mlock + options.mmap  # bit 0 mmap, bit 1 mlock
        params.progress_callback = callback
        model = C.llama_model_load_from_file(os.fsencode(path), params)
        if cancelled:
            if model:
                C.llama_model_free(model)
            raise raised or LoadCancelled(f"Loading {path.name} was cancelled.")
        if not model:
            raise ModelLoadError(f"Cannot load {path}: {_last_error()}")
        try:
            context = cls._make_context(path, model, options)
            try:
                cls._apply_lora(path, model, context, options)
                return cls(path, options, model, context)
            except BaseException:
                C.llama_free(context)
                raise
        except BaseException:
            C.llama_model_free(model)
            raise

    @staticmethod
    def _make_context(path: Path, model: Any, options: ModelOptions) -> Any:
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
                f"Cannot make a context of {params.n_ctx} tokens for {path.name}: {_last_error()}. "
                "A smaller --ctx needs less memory."
            )
        return context

    @staticmethod
    def _apply_lora(path: Path, model: Any, context: Any, options: ModelOptions) -> None:
        if not options.lora:
            return
        adapters = []
        for lora, _scale in options.lora:
            if not Path(lora).is_file():
                raise ModelLoadError(f"LoRA file {lora} does not exist.")
            adapter = C.llama_adapter_lora_init(model, os.fsencode(lora))
            if not adapter:
                raise ModelLoadError(f"LoRA {lora} does not fit {path.name}: {_last_error()}")
            adapters.append(adapter)
        pointers = (C.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
        scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in options.lora))
        if C.llama_set_adapters_lora(context, pointers, len(adapters), scales) != 0:
            raise ModelLoadError(f"llama.cpp refused the LoRA for {path.name}: {_last_error()}")

    def _init_batch(self) -> None:
        size, sequences = max(self.options.prefill_chunk, 32), self.options.sequences
        size = max(size, self.options.max_outputs * sequences)
        self.max_batch = min(size, C.llama_n_batch(self._context))
        self.prefill_chunk = min(self.options.prefill_chunk, self.max_batch)
        self._ids = np.zeros(size, np.int32)
        self._positions = np.zeros(size, np.int32)
        self._n_seq = np.ones(size, np.int32)
        self._wanted = np.zeros(size, np.int8)
        self._seq_values = np.arange(sequences, dtype=np.int32)
        self._seq_address = self._seq_values.ctypes.data
        self._count = np.arange(self.n_ctx, dtype=np.int32)
        self._seq_pointers = np.zeros(size, np.uintp)
        self._batch = C.llama_batch(
            n_tokens=0,
            token=self._ids.ctypes.data_as(ctypes.POINTER(C.llama_token)),
            embd=None,
            pos=self._positions.ctypes.data_as(ctypes.POINTER(C.llama_pos)),
            n_seq_id=self._n_seq.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._seq_pointers.ctypes.data_as(
                ctypes.POINTER(ctypes.POINTER(C.llama_seq_id))
            ),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def new_cache(self) -> LlamaCache:
        """An empty cache on a free sequence. Raises DecodeError when all are taken."""
        if not self._free_ids:
            raise DecodeError(
                f"All {self.options.sequences} sequences of {self.path.name} are busy."
            )
        return LlamaCache(self, self._free_ids.pop(0))

    def copy_prefix(self, source: LlamaCache, cache: LlamaCache, length: int) -> None:
        """Let `cache` share the first `length` tokens of `source`, instead of what it held."""
        self._reset(cache)
        if length:
            C.llama_memory_seq_cp(self._memory, source.seq_id, cache.seq_id, 0, length)
            cache.tokens = source.tokens[:length]

    def release(self, cache: LlamaCache) -> None:
        """Empty `cache` and give its sequence back."""
        cache.truncate(0)
        self._free_ids.append(cache.seq_id)

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Logits]:
        """See `model.Model.evaluate`. At most `max_batch` tokens in all."""
        if not self._context:
            raise DecodeError(f"{self.path.name} is closed.")
        n = outputs = 0
        for request in requests:
            cache = request.cache
            assert isinstance(cache, LlamaCache)
            end = n + len(request.tokens)
            depth = len(cache.tokens)
            if end > self.max_batch or depth + len(request.tokens) > self.n_ctx:
                raise DecodeError(
                    f"{len(request.tokens)} tokens at position {depth} do not fit "
                    f"(context {self.n_ctx}, at most {self.max_batch} a call)."
                )
            self._ids[n:end] = request.tokens
            self._positions[n:end] = self._count[depth : depth + end - n]
            self._seq_pointers[n:end] = self._seq_address + 4 * cache.seq_id
            self._wanted[n:end] = 0
            self._wanted[end - request.outputs : end] = 1
            if self.rollback == "checkpoint" and request.outputs > 1:
                cache._checkpoint = self._save(cache)
            n = end
            outputs += request.outputs
        if outputs > self.options.max_outputs * self.options.sequences:
            raise DecodeError(f"{outputs} outputs do not fit a call of {self.path.name}.")
        self._batch.n_tokens = n
        code = C.llama_decode(self._context, self._batch)
        if code != 0:
            self._undo(requests)
            raise self._decode_error(code)
        for request in requests:
            request.cache.tokens.extend(request.tokens)
            request.cache._last = len(request.tokens)  # type: ignore[attr-defined]
        if not outputs:
            return [self._view[1][:0] for _ in requests]
        rows = self._logits(outputs)
        answer, first = [], 0
        for request in requests:
            answer.append(rows[first : first + request.outputs])
            first += request.outputs
        return answer

    def bare_greedy(self, cache: LlamaCache, token: int) -> int:
        """The least a plain decoding loop can do: one llama_decode and one argmax.

        The yardstick of `specchat bench overhead`; returns the next token.
        """
        self._ids[0], self._positions[0], self._wanted[0] = token, len(cache.tokens), 1
        self._seq_pointers[0] = self._seq_address + 4 * cache.seq_id
        self._batch.n_tokens = 1
        if code := C.llama_decode(self._context, self._batch):
            raise self._decode_error(code)
        cache.tokens.append(token)
        return int(self._logits(1)[0].argmax())

    def _logits(self, outputs: int) -> Logits:
        """A NumPy view over llama.cpp's logits, remade only when its buffer moved or grew."""
        pointer = C.llama_get_logits(self._context)
        if not pointer:
            raise DecodeError("llama.cpp returned no logits.")
        address = ctypes.addressof(pointer.contents)
        if self._view[0] != address or len(self._view[1]) < outputs:
            memory = (ctypes.c_float * (outputs * self.n_vocab)).from_address(address)
            self._view = (address, np.ctypeslib.as_array(memory).reshape(outputs, -1))
        return self._view[1][:outputs]

    def _undo(self, requests: Sequence[Evaluate]) -> None:
        """Put every cache back to its length before a failed call. A recurrent state may
        have been changed in part: it is dropped, and the next request evaluates all again.
        """
        for request in requests:
            cache = request.cache
            assert isinstance(cache, LlamaCache)
            if self.rollback != "exact" or not C.llama_memory_seq_rm(
                self._memory, cache.seq_id, len(cache.tokens), -1
            ):
                self._reset(cache)

    def _decode_error(self, code: int) -> Exception:
        if code == 2:
            return Cancelled("The call was cancelled.")
        meaning = {
            1: "no room in the KV cache; use a larger --ctx or fewer parallel sequences",
            -1: "invalid batch",
        }.get(code, _last_error())
        return DecodeError(f"llama_decode returned {code} for {self.path.name}: {meaning}.")

    def abort(self, on: bool = True) -> None:
        """Make the running and following calls raise Cancelled until `abort(False)`."""
        self._abort[0] = b"x" if on else b"\0"

    # -- rollback -------------------------------------------------------------------

    def _probe_rollback(self) -> None:
        """Find out, by doing it, whether rejected tokens can leave the cache."""
        cache = self.new_cache()
        token = self.tokenizer.bos or 0
        special = C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model)
        try:
            self.evaluate([Evaluate(cache, [token, token, token], 1)])
            self.rollback = "snapshots" if special else "exact"
            try:
                cache.truncate(1)
                self.evaluate([Evaluate(cache, [token], 1)])
            except RollbackError:
                self._reset(cache)
                self.rollback = "checkpoint"
                try:
                    self.evaluate([Evaluate(cache, [token], 1)])
                    self.evaluate([Evaluate(cache, [token, token], 2)])
                    cache.truncate(1)
                except RollbackError as error:
                    self.rollback, self.rollback_reason = "none", str(error)
        finally:
            self._reset(cache)
            self._free_ids.insert(0, cache.seq_id)

    def _reset(self, cache: LlamaCache) -> None:
        C.llama_memory_seq_rm(self._memory, cache.seq_id, -1, -1)
        cache.tokens.clear()
        cache._checkpoint, cache._last = None, 0

    def _truncate(self, cache: LlamaCache, length: int) -> None:
        if not self._context:
            cache.tokens.clear()
            return
        dropped = len(cache.tokens) - length
        if length == 0:
            self._reset(cache)
        elif (self.rollback == "exact" or dropped < cache._last) and C.llama_memory_seq_rm(
            self._memory, cache.seq_id, length, -1
        ):
            del cache.tokens[length:]
            cache._last = 0
            if cache._checkpoint and cache._checkpoint[0] > length:
                cache._checkpoint = None
        else:
            self._restore(cache, length)

    def _save(self, cache: LlamaCache) -> tuple[int, Any]:
        """The state that seq_rm cannot roll back (recurrent part), as (length, bytes)."""
        flags = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = C.llama_state_seq_get_size_ext(self._context, cache.seq_id, flags)
        buffer = (ctypes.c_uint8 * size)()
        C.llama_state_seq_get_data_ext(self._context, buffer, size, cache.seq_id, flags)
        return len(cache.tokens), buffer

    def _restore(self, cache: LlamaCache, length: int) -> None:
        """Go back to the checkpoint and evaluate again up to `length`."""
        saved = cache._checkpoint
        if saved is None or length < saved[0]:
            raise RollbackError(
                f"{self.path.name} cannot drop tokens from its cache: its recurrent state "
                "keeps no history."
            )
        start, buffer = saved
        if start and not C.llama_state_seq_set_data_ext(
            self._context,
            buffer,
            len(buffer),
            cache.seq_id,
            C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY,
        ):
            raise RollbackError(f"llama.cpp did not restore the saved state of {self.path.name}.")
        again = cache.tokens[start:length]
        del cache.tokens[start:]
        if not C.llama_memory_seq_rm(self._memory, cache.seq_id, start or -1, -1):
            raise RollbackError(f"{self.path.name} cannot drop tokens after a restored state.")
        with contextlib.suppress(Cancelled):  # leaves the cache empty, which is also in order
            for first in range(0, len(again), self.max_batch):
                self.evaluate([Evaluate(cache, again[first : first + self.max_batch], 0)])

    @property
    def can_rollback(self) -> bool:
        return self.rollback != "none"

    # -- life -----------------------------------------------------------------------

    def close(self) -> None:
        """Free context and weights; safe to call twice."""
        if self._context:
            C.llama_free(self._context)
            C.llama_model_free(self._model)
            self._context = self._model = None

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def default_threads() -> int:
    """Physical cores this process may use: hyper-threads slow token generation down."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 4, usable or 4))


def log_path() -> Path:
    """Where llama.cpp's log goes."""
    return _log.path


def _last_error() -> str:
    return "; ".join(list(_log.errors)[-2:]) or f"see {_log.path}"


# File types of llama.h that make sense for a benchmark fixture.
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}


def quantize(source: Path, target: Path, kind: str) -> None:
    """Write `source` with its weights in another type, by llama.cpp's own quantiser.

    Quantised sources are accepted. Raises BadRequestError for an unknown type,
    ModelLoadError with llama.cpp's last error.
    """
    if kind not in FILE_TYPES:
        raise BadRequestError(f"There is no type {kind!r}; choose from {', '.join(FILE_TYPES)}.")
    _start_backend()
    _log.errors.clear()
    params = C.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    params.allow_requantize = True
    params.nthread = default_threads()
    if C.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        raise ModelLoadError(f"Cannot write {source.name} as {kind}: {_last_error()}")
