"""From token bytes to text that may be shown: whole characters, no stop strings.

Tokens wait here until their text is safe: a byte sequence may be half a character, and a
text may be the beginning of a stop string.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from .events import WORST_FIRST, Kind, Token


class TextStream:
    """Turns tokens in order into tokens with final `text` and `text_kind`.

    `push` and `finish` return the tokens whose text became certain. The stop string that
    counts is the one complete first, however the text was cut into tokens. After `stopped`
    names it, nothing more comes out and the rest is dropped.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(s for s in stops if s)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[Token] = deque()
        self._held = ""  # text of the waiting tokens, concatenated
        self._kinds: list[Kind] = []  # kinds of the tokens that share an unfinished character
        self.stopped: str | None = None

    def push(self, token: Token, piece: bytes) -> list[Token]:
        """Add a token with its bytes; returns tokens now ready, in order."""
        if self.stopped is not None:
            return []
        text = self._decoder.decode(piece)
        kinds = [*self._kinds, token.kind]
        unfinished = bool(self._decoder.getstate()[0])
        self._kinds = ([token.kind] if text else kinds) if unfinished else []
        shown = min(kinds, key=WORST_FIRST.index) if text else token.kind
        self._waiting.append(_with_text(token, text, shown))
        self._held += text
        return self._release()

    def finish(self) -> list[Token]:
        """The end of the answer: what is left, an unfinished character as U+FFFD."""
        if self.stopped is not None:
            return []
        rest = self._decoder.decode(b"", final=True)
        if rest:  # its tokens are still waiting
            last = self._waiting.pop()
            shown = last.text_kind if last.text else min(self._kinds, key=WORST_FIRST.index)
            self._waiting.append(replace(last, text=last.text + rest, text_kind=shown))
        self._kinds = []
        self._held += rest
        return self._release(final=True)

    def _release(self, final: bool = False) -> list[Token]:
        hits = [(at, s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if hits:
            # The first to end; of those that end together the longest.
            at, self.stopped = min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            return self._take(at, partial=True)
        safe = len(self._held) if final else len(self._held) - self._possible_stop()
        return self._take(safe)

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that could begin a stop string."""
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest

    def _take(self, length: int, partial: bool = False) -> list[Token]:
        """Release tokens whose text lies within the first `length` held characters.

        With `partial`, the token that crosses the boundary comes out cut.
        """
        ready: list[Token] = []
        while len(self._waiting) > len(self._kinds) and len(self._waiting[0].text) <= length:
            if length == 0 and (partial or self._waiting[0].text):
                break  # with a stop, empty tokens at it belong to what is dropped
            token = self._waiting.popleft()
            length -= len(token.text)
            self._held = self._held[len(token.text) :]
            ready.append(token)
        if partial:
            if length > 0:
                ready.append(replace(self._waiting[0], text=self._waiting[0].text[:length]))
            self._waiting.clear()
            self._held = ""
        return ready


def _with_text(t: Token, text: str, kind: Kind) -> Token:
    """`replace(t, text=text, text_kind=kind)`, at half its price, once per token."""
    return Token(
        t.id, text, t.kind, kind, t.round, t.p, t.q, t.acceptance, t.rejected, t.logprob,
        t.alternatives, t.draft_alternatives,
    )  # fmt: skip


def strip_control(text: str) -> str:
    """Text a terminal may print: control characters (C0 except tab and newline, DEL, C1)
    become U+FFFD, so no escape sequence survives; so do the Unicode embeddings, overrides and
    isolates, which would reorder what stands around the text.
    """
    return text.translate(_CONTROL_TABLE)


_CONTROL_TABLE = {
    code: "�"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if code not in (0x09, 0x0A)
}
