"""Getting past a header's long arrays of strings quickly: tokens and merges are most of it.

In the file each string is its length (8 bytes, little-endian) and its bytes, so that where one
begins is only known from the one before.
"""

from __future__ import annotations

import hashlib
import struct
import threading

import numpy as np

_LENGTH = struct.Struct("<Q").unpack_from
_MANY = 64  # surprises in a piece after which it is walked string by string


def skip_strings(piece: bytes, offset: int, most: int) -> tuple[int, int]:
    """Pass at most `most` strings whose lengths lie in `piece`, the first of them at `offset`.

    Returns how many, and the offset after the last; that may lie beyond the piece.

    A short string's length looks like one non-zero byte and seven zeros, which texts hardly
    contain: all such places are found at once, and count where each leads to the next.
    """
    if len(piece) - offset < 4096 or most < 64:
        return _walk(piece, offset, most)
    raw = np.frombuffer(piece, np.uint8)
    values = np.ndarray((len(raw) - 7,), "<u8", raw, 0, (1,))
    starts = np.flatnonzero(values < 256)
    ends = starts + 8 + values[starts].astype(np.int64)
    breaks = np.flatnonzero(starts[1:] != ends[:-1])  # the next place is not where this one ends
    passed = surprises = 0
    while passed < most and offset + 8 <= len(piece):
        if surprises > _MANY:
            more, offset = _walk(piece, offset, most - passed)
            return passed + more, offset
        surprises += 1
        i = int(np.searchsorted(starts, offset))
        if i == len(starts) or starts[i] != offset:  # a longer string
            more, offset = _walk(piece, offset, 1)
            passed += more
            continue
        j = int(np.searchsorted(breaks, i))
        last = int(breaks[j]) if j < len(breaks) else len(starts) - 1
        last = min(last, i + most - passed - 1)
        passed, offset = passed + last - i + 1, int(ends[last])
    return passed, offset


def _walk(piece: bytes, offset: int, most: int) -> tuple[int, int]:
    passed, size = 0, len(piece)
    while passed < most and offset + 8 <= size:
        offset += 8 + _LENGTH(piece, offset)[0]
        passed += 1
    return passed, offset


class Seen:
    """Long string arrays met lately, with their SHA-256. Models of a family share their
    vocabulary, and comparing one is ten times faster than walking through its strings.
    """

    def __init__(self, most: int = 1 << 27) -> None:
        self._most, self._size = most, 0  # bytes
        self._known: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int]) -> list[tuple[bytes, bytes]]:
        """(bytes, SHA-256) of the arrays with this name and count."""
        with self._lock:
            return list(self._known.get(key, ()))

    def add(self, key: tuple[str, int], raw: bytes) -> bytes:
        digest = hashlib.sha256(raw).digest()
        with self._lock:
            self._size += len(raw)
            if self._size > self._most:
                self._known, self._size = {}, len(raw)
            self._known.setdefault(key, []).append((raw, digest))
        return digest

    def clear(self) -> None:
        with self._lock:
            self._known, self._size = {}, 0


seen = Seen()


def forget_arrays() -> None:
    """Free the string arrays kept for comparison (128 MiB at most); for after a scan."""
    seen.clear()
