"""Grammars as llama.cpp enforces them."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt

from specchat.engine import gbnf
from specchat.engine.llama.backend import log
from specchat.engine.llama.tokenizer import Tokenizer
from specchat.errors import GrammarError

MAX_SECONDS = 2.0  # for one call; an ambiguous grammar takes longer with every character


class Grammar:
    """A GBNF grammar's state: which tokens may come next. Close it, or use `with`.

    Raises GrammarError for what `gbnf.check` or llama.cpp refuses, and from all methods
    for one that takes too long.
    """

    def __init__(self, tokenizer: Tokenizer, source: str, *, _sampler: Any = None) -> None:
        self._tokenizer = tokenizer
        self.source = source
        if _sampler is None:
            gbnf.check(source)
            log.errors.clear()
            raw = source.encode("utf-8", "replace")
            _sampler = C.llama_sampler_init_grammar(tokenizer._vocab, raw, b"root")
            if not _sampler:
                detail = "; ".join(log.errors) or "llama.cpp gave no reason"
                raise GrammarError(f"llama.cpp refused the grammar: {detail}")
        self._sampler = _sampler

    def allowed(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of `ids` the grammar accepts next: bool array of the same shape."""
        data = np.zeros(len(ids), dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
        data["id"] = ids
        array = C.llama_token_data_array(
            data=data.ctypes.data_as(C.llama_token_data_p), size=len(ids), selected=-1, sorted=False
        )
        start = time.perf_counter()
        C.llama_sampler_apply(self._sampler, ctypes.byref(array))
        _check_time(start)
        allowed: npt.NDArray[np.bool_] = np.isfinite(data["logit"])
        return allowed

    def accept(self, token: int) -> None:
        """Advance past `token`, which must be allowed (raises GrammarError otherwise)."""
        if not self.allowed(np.array([token], dtype=np.int32))[0]:
            # llama.cpp would throw a C++ exception through ctypes and end the process.
            raise GrammarError(f"Token {token} does not fit the grammar at this point.")
        start = time.perf_counter()
        C.llama_sampler_accept(self._sampler, token)
        _check_time(start)

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


def _check_time(start: float) -> None:
    if time.perf_counter() - start > MAX_SECONDS:
        raise GrammarError("The grammar is too ambiguous: one token took it seconds.")
