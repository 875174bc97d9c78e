"""One GGUF loaded to turn texts into vectors, beside the pair that chats."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt

from specchat.engine.header import read_header
from specchat.engine.llama.backend import (
    default_threads,
    extra_buffers,
    last_error,
    log,
    start_backend,
)
from specchat.engine.llama.tokenizer import Tokenizer
from specchat.errors import BadRequestError, DecodeError, ModelLoadError, PromptTooLongError

Vectors = npt.NDArray[np.float32]

# Tokens of a text. A whole text is one call, which needs memory for all of it; a decoder's
# also for every token's logits (at 8192 tokens 1.7 GB with SmolLM2's vocabulary).
_LONGEST_ENCODED, _LONGEST_DECODED = 8192, 2048


class EmbeddingModel:
    """Texts of at most `n_ctx` tokens become vectors of `width` numbers. Any thread may call
    it; one text is computed at a time.
    """

    def __init__(self, path: Path, model: Any, context: Any) -> None:
        self.path = path
        self._model, self._context = model, context
        self._lock = threading.Lock()
        self.tokenizer = Tokenizer(C.llama_model_get_vocab(model))
        self.width: int = C.llama_model_n_embd_out(model)
        self.n_ctx: int = C.llama_n_ctx(context)

    @classmethod
    def load(cls, path: str | Path, *, n_gpu_layers: int = -1, threads: int = 0) -> EmbeddingModel:
        """Raises ModelFileError, and ModelLoadError for a file that makes no embeddings."""
        header = read_header(Path(path))
        pooling = header.get("pooling_type")
        if not isinstance(pooling, int) or not pooling:
            raise ModelLoadError(
                f"{header.path.name} is no embedding model: it does not say how to pool its "
                "tokens. Name one that does, such as a BERT or nomic-embed GGUF."
            )
        header.require_loadable()
        start_backend()
        log.errors.clear()
        params = C.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.use_extra_bufts = extra_buffers()
        model = C.llama_model_load_from_file(os.fsencode(header.path), params)
        if not model:
            raise ModelLoadError(f"Cannot load {header.path}: {last_error()}")
        context_params = C.llama_context_default_params()
        context_params.embeddings = True
        longest = _LONGEST_DECODED if header.get("attention.causal", True) else _LONGEST_ENCODED
        context_params.n_ctx = min(C.llama_model_n_ctx_train(model) or longest, longest)
        context_params.n_batch = context_params.n_ubatch = context_params.n_ctx
        context_params.n_threads = context_params.n_threads_batch = threads or default_threads()
        context = C.llama_init_from_model(model, context_params)
        if not context or C.llama_pooling_type(context) == C.LLAMA_POOLING_TYPE_RANK:
            reason = "it ranks texts" if context else last_error()
            if context:
                C.llama_free(context)
            C.llama_model_free(model)
            raise ModelLoadError(f"{header.path.name} cannot make embeddings: {reason}.")
        return cls(header.path, model, context)

    def tokens(self, text: str) -> list[int]:
        """Token ids with the begin and end that the model was trained with."""
        return self.tokenizer.tokenize(text, add_special=True)

    def embed(self, tokens: Sequence[int]) -> Vectors:
        """The vector of one text: shape (width,), of length 1.

        Raises BadRequestError, PromptTooLongError, DecodeError.
        """
        n = len(tokens)
        if not n:
            raise BadRequestError("There is nothing to embed.", "input")
        if n > self.n_ctx:
            raise PromptTooLongError(n, self.n_ctx)
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self.tokenizer.n_vocab:
                raise BadRequestError(
                    f"There is no token {token}; {self.path.stem} has {self.tokenizer.n_vocab}.",
                    "input",
                )
        with self._lock:
            if not self._context:
                raise DecodeError(f"{self.path.name} is closed.")
            vector = self._pooled((C.llama_token * n)(*tokens), n)
        length = float(np.linalg.norm(vector))
        if not np.isfinite(length) or length == 0.0:
            raise DecodeError(f"{self.path.name} made a vector that is not a number.")
        return vector / np.float32(length)

    def _pooled(self, ids: Any, n: int) -> Vectors:
        memory = C.llama_get_memory(self._context)
        if memory:
            C.llama_memory_clear(memory, True)
        call = C.llama_decode if memory else C.llama_encode
        if code := call(self._context, C.llama_batch_get_one(ids, n)):
            raise DecodeError(f"llama.cpp returned {code} for {self.path.name}: {last_error()}")
        pointer = C.llama_get_embeddings_seq(self._context, 0)
        if not pointer:
            raise DecodeError(f"{self.path.name} made no embedding.")
        return np.array(np.ctypeslib.as_array(pointer, (self.width,)), np.float32)

    def close(self) -> None:
        """Free everything; safe to call twice."""
        with self._lock:
            if self._context:
                C.llama_free(self._context)
                C.llama_model_free(self._model)
                self._context = self._model = None
