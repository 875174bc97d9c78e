"""One loaded GGUF and the caches of its sequences."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np

from specchat.engine.llama.backend import (
    extra_buffers,
    flag_callback,
    last_error,
    log,
    start_backend,
)
from specchat.engine.llama.context import apply_lora, make_context
from specchat.engine.llama.options import ModelOptions
from specchat.engine.llama.tokenizer import Tokenizer
from specchat.engine.model import Evaluate, Logits
from specchat.errors import (
    Cancelled,
    DecodeError,
    LoadCancelled,
    ModelLoadError,
    RollbackError,
)


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
            context, flag_callback(), ctypes.cast(self._abort, ctypes.c_void_p)
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
        Check the file first: `header.read_header`, `require_loadable`.
        """
        options = options or ModelOptions()
        path = Path(path)
        start_backend()
        log.errors.clear()
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
        params.use_extra_bufts = extra_buffers()
        params.load_mode = 2 * options.mlock + options.mmap  # bit 0 mmap, bit 1 mlock
        params.progress_callback = callback
        model = C.llama_model_load_from_file(os.fsencode(path), params)
        if cancelled:
            if model:
                C.llama_model_free(model)
            raise raised or LoadCancelled(f"Loading {path.name} was cancelled.")
        if not model:
            raise ModelLoadError(f"Cannot load {path}: {last_error()}")
        try:
            context = make_context(path, model, options)
            try:
                apply_lora(path, model, context, options)
                return cls(path, options, model, context)
            except BaseException:
                C.llama_free(context)
                raise
        except BaseException:
            C.llama_model_free(model)
            raise

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
        }.get(code, last_error())
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
