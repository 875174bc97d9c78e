"""Text that remembers which of its characters the template's author wrote.

A special token in a rendered prompt is real only if every character of it comes from the
template; anything a message contributed to is plain text. So trust is carried per
character through the operations templates build markup with (output, `+`, `~`, join,
strip, slices, case), and every other operation forgets it: a gap here can cost a template
its own special token, never give one to a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex


class Marked(str):
    """A str with one byte per character in `_trust`: 1 from the template, 0 from elsewhere.

    The leading underscore keeps the bytes out of a sandboxed template's reach.
    """

    __slots__ = ("_trust",)
    _trust: bytes

    def __new__(cls, text: str, trust: bytes | None = None) -> Marked:
        self = super().__new__(cls, text)
        self._trust = bytes(len(text)) if trust is None else trust
        return self

    def __str__(self) -> Marked:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        item = super().__getitem__(key)
        if isinstance(key, slice):
            return Marked(item, self._trust[key])
        index = key.__index__()
        return Marked(item, self._trust[index : index + 1 or None])

    def _cut(self, left: int, right: int) -> Marked:
        return Marked(str.__getitem__(self, slice(left, right)), self._trust[left:right])

    def strip(self, chars: str | None = None, /) -> str:
        left = len(self) - len(str.lstrip(self, chars))
        return self._cut(left, max(left, len(str.rstrip(self, chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(0, len(str.rstrip(self, chars)))

    def _recased(self, text: str) -> str:
        return Marked(text, self._trust) if len(text) == len(self) else text

    def upper(self) -> str:
        return self._recased(str.upper(self))

    def lower(self) -> str:
        return self._recased(str.lower(self))

    def join(self, parts: Iterable[str], /) -> str:
        return join(parts, self)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        text = str.replace(self, old, new, count)
        return literal(text) if all_trusted(self, new) else text


def literal(text: str) -> Marked:
    """Text written by the template's author: every character trusted."""
    return Marked(text, b"\x01" * len(text))


def trust_of(text: str) -> bytes:
    return text._trust if isinstance(text, Marked) else bytes(len(text))


def all_trusted(*values: object) -> bool:
    """True if every value is text written by the template's author."""
    return all(isinstance(value, Marked) and 0 not in value._trust for value in values)


def join(parts: Iterable[str], separator: str = "") -> Marked:
    """`separator.join(parts)`, keeping the trust of every character."""
    parts = list(parts)
    text = str.join(separator, parts)
    return Marked(text, trust_of(separator).join(map(trust_of, parts)))


class Specials:
    """Finds the texts of a vocabulary's special tokens, and says which are the template's."""

    def __init__(self, texts: Mapping[str, int]) -> None:
        self._by_first: dict[str, dict[int, set[str]]] = {}
        for text in texts:
            self._by_first.setdefault(text[0], {}).setdefault(len(text), set()).add(text)
        firsts = "".join(map(re.escape, self._by_first))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self._ids = texts

    def contained(self, text: str) -> set[int]:
        """Ids of the special tokens whose text occurs in `text`."""
        return {self._ids[text[start:end]] for start, end in self.spans(text)}

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of every occurrence, overlapping ones included, by start."""
        for match in self._first.finditer(text):
            start = match.start()
            for length, words in self._by_first[match.group()].items():
                if str.__getitem__(text, slice(start, start + length)) in words:
                    yield start, start + length

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """Cut `text` into (piece, parse_special), in order and without loss.

        Special tokens that are wholly the template's stay in pieces to parse. What any
        other occurrence covers becomes a piece not to parse, except where it overlaps the
        template's own: a message must neither make a special token nor break one. A piece
        to parse therefore never holds a whole occurrence that has an untrusted character.
        """
        trust = trust_of(text)
        plain = bytearray(len(text))  # 1 where the character must not be parsed
        keep = []
        for start, end in self.spans(text):
            if 0 in trust[start:end]:
                plain[start:end] = b"\x01" * (end - start)
            else:
                keep.append((start, end))
        for start, end in keep:
            plain[start:end] = bytes(end - start)
        exact = str.__getitem__(text, slice(None))
        runs = re.finditer(rb"\x00+|\x01+", plain)
        return [(exact[m.start() : m.end()], plain[m.start()] == 0) for m in runs]


def as_plain(value: Any) -> Any:
    """A copy of `value` made of exact dict, list, str, int, float, bool and None only.

    Nothing else may reach a template, save text the caller marked as trusted. Raises
    TypeError naming the offending type.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if isinstance(value, Marked) else str.__str__(value)
    if isinstance(value, Mapping):
        return {as_plain(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    raise TypeError(f"a template gets JSON-like values only, not {type(value).__name__}")
