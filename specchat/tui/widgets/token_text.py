"""Tokens on the screen, in blocks of which only the last one changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from textual.containers import Vertical
from textual.content import Content, Span
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from specchat.engine.events import Token
from specchat.tui.kinds import coloured, shown
from specchat.tui.widgets.quiet import put

if TYPE_CHECKING:
    from textual.events import Click

    from specchat.tui.app import SpecchatApp

# A block is closed at a line break once it has this many tokens; without one, at the limit,
# where the screen breaks the line anyway.
# Small blocks keep the work per frame small however long the answer grows.
_BLOCK, _LIMIT = 60, 250


class _Block(Static):
    """Some tokens. Reports which one was clicked."""

    def __init__(self, first: int) -> None:
        super().__init__(markup=False, classes="block")
        self.first = first

    def on_click(self, event: Click) -> None:
        index = event.style.meta.get("token")
        if index is not None:
            event.stop()
            self.post_message(TokenText.Clicked(index))


class TokenText(Vertical):
    """`tokens` in their kinds' colours. Indices are the message's; `first` is ours."""

    class Clicked(Message):
        """The user clicked on token `index`."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, first: int = 0, classes: str = "") -> None:
        super().__init__(classes=f"tokens {classes}")
        self.first = first
        self.tokens: list[Token] = []
        self._blocks: list[_Block] = []
        self._wrapped: set[int] = set()  # first tokens of blocks that begin within a line
        self._width = 0  # at which those were cut
        self._cursor: int | None = None
        self._query = ""

    def extend(self, tokens: Iterable[Token]) -> None:
        """Show further tokens."""
        changed = False
        for token in tokens:
            if not self._blocks or self._full():
                if changed:
                    self._paint(len(self._blocks) - 1)
                block = _Block(self._next_first())
                self._blocks.append(block)
                self.mount(block)
                if len(self._blocks) > 1:
                    self._paint(len(self._blocks) - 2)  # it is not the last one any more
            self.tokens.append(token)
            changed = True
        if changed:
            self._paint(len(self._blocks) - 1)

    def _next_first(self) -> int:
        """The token a further block begins with: the next one or, within a line, the first of
        the last one as the screen wraps it.
        """
        end = self.first + len(self.tokens)
        if not self._blocks or self.tokens[-1].text.endswith("\n"):
            return end
        first = self._blocks[-1].first
        self._width = self.content_size.width
        cut = wrapped_start(self.tokens[first - self.first :], self._width)
        self._wrapped.add(first + cut if cut else end)
        return first + cut if cut else end

    def on_resize(self) -> None:
        """Cut anew where lines are wrapped elsewhere now."""
        if self._wrapped and self.content_size.width != self._width:
            tokens, self.tokens = self.tokens, []
            for block in self._blocks:
                block.remove()
            self._blocks, self._wrapped = [], set()
            self.extend(tokens)

    def _full(self) -> bool:
        size = self.first + len(self.tokens) - self._blocks[-1].first
        return size >= _LIMIT or (size >= _BLOCK and self.tokens[-1].text.endswith("\n"))

    def repaint(self) -> None:
        for index in range(len(self._blocks)):
            self._paint(index)

    def _paint(self, index: int) -> None:
        block = self._blocks[index]
        last = index == len(self._blocks) - 1
        end = self.first + len(self.tokens) if last else self._blocks[index + 1].first
        tokens = self.tokens[block.first - self.first : end - self.first]
        content = coloured(
            tokens, cast("SpecchatApp", self.app).looks, first=block.first, cursor=self._cursor
        )
        if self._query:
            content = content.add_spans(list(hits(content.plain, self._query)))
        if block.first in self._wrapped and content.plain.startswith(" "):
            content = content[1:]  # as wrapping drops it
        if not last and content.plain.endswith("\n"):
            content = content.right_crop(1)  # the next block begins on a new line anyway
        put(block, content)

    def move_cursor(self, index: int | None) -> None:
        """Mark token `index` of the message, or none."""
        before, self._cursor = self._cursor, index
        for at in {before, index}:
            block = self._at(at)
            if block is not None:
                self._paint(block)
                if at == index:  # after the layout that the inspector changes
                    self.call_after_refresh(self._blocks[block].scroll_visible, animate=False)

    def _at(self, index: int | None) -> int | None:
        if index is None or not self.first <= index < self.first + len(self.tokens):
            return None
        return max(i for i, block in enumerate(self._blocks) if block.first <= index)

    def find(self, query: str, place: int = 0) -> bool:
        """Mark where `query` stands, and scroll to a place, from 0; "" takes the marks away."""
        self._query = shown(query)
        self.repaint()
        text = "".join(shown(t.text) for t in self.tokens)
        places = [span.start for span in hits(text, self._query)]
        if not places:
            return False
        at = places[min(place, len(places) - 1)]
        index = self.first
        for token in self.tokens:
            at -= len(shown(token.text))
            if at < 0:
                break
            index += 1
        block = self._at(index)
        if block is not None:
            self._blocks[block].scroll_visible(animate=False)
        return True


def wrapped_start(tokens: Sequence[Token], width: int) -> int:
    """Which token begins the last line, wrapped at `width` columns; 0 if none does."""
    pieces = [shown(t.text) for t in tokens]
    text = "".join(pieces)
    lines = Content(text).wrap(width) if width else []
    start = text.rfind(lines[-1].plain.strip()) if len(lines) > 1 else 0
    at = 0
    for index, piece in enumerate(pieces):
        if piece and (at == start or (at == start - 1 and piece.startswith(" "))):
            return index
        at += len(piece)
    return 0


def hits(text: str, query: str) -> Iterator[Span]:
    """Where `query` stands in `text`, whatever the case; nowhere for ""."""
    for match in re.finditer(re.escape(query), text, re.IGNORECASE) if query else ():
        yield Span(*match.span(), Style(reverse=True))
