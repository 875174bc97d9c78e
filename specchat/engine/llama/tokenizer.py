"""Text to token ids and back, by llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import llama_cpp.llama_cpp as C

from specchat.errors import BadRequestError


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

    def tokenize(
        self, text: str, *, parse_special: bool = False, add_special: bool = False
    ) -> list[int]:
        """Token ids of `text`.

        With `parse_special` false, text that looks like a control token stays text. With
        `add_special`, the vocabulary's own tokens are put around it ([CLS], BOS, EOS, ...).
        """
        raw = text.encode("utf-8", "replace")
        size = len(raw) + 8
        while True:
            buffer = (C.llama_token * size)()
            n = C.llama_tokenize(
                self._vocab, raw, len(raw), buffer, size, add_special, parse_special
            )
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
