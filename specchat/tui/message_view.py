"""One message on the screen: blocks of tokens, of which only the last one changes."""

from __future__ import annotations

from rich.text import Text
from textual.containers import Vertical
from textual.widgets import Static

from specchat.engine.events import Token
from specchat.engine.text import strip_control
from specchat.tui.kinds import coloured

# A block is closed at a line break once it has this many tokens; without one, at the limit.
# Small blocks keep the work per frame small however long the answer grows.
_BLOCK, _LIMIT = 60, 400


class MessageView(Vertical):
    """A user's text, or an answer that grows. `tokens` are those of an answer."""

    def __init__(self, who: str, text: str = "") -> None:
        super().__init__(classes=f"message {who}")
        self.who = who
        self.tokens: list[Token] = []
        self._text = text
        self._blocks: list[tuple[int, Static]] = []  # index of its first token, widget
        self._cursor: int | None = None

    def compose(self):  # type: ignore[no-untyped-def]
        yield Static(self.who, classes="who", markup=False)
        if self._text:
            yield Static(Text(strip_control(self._text)), markup=False)

    @property
    def text(self) -> str:
        return self._text or "".join(token.text for token in self.tokens)

    def extend(self, tokens: list[Token]) -> None:
        """Show further tokens of the answer."""
        changed = False
        for token in tokens:
            if not self._blocks or self._full():
                if changed:
                    self._paint(-1)
                block = Static(markup=False, classes="block")
                self._blocks.append((len(self.tokens), block))
                self.mount(block)
            self.tokens.append(token)
            changed = True
        if changed:
            self._paint(-1)

    def note(self, text: str) -> None:
        """A remark below the message, such as an error."""
        self.mount(Static(Text(strip_control(text)), classes="note", markup=False))

    def _full(self) -> bool:
        size = len(self.tokens) - self._blocks[-1][0]
        return size >= _LIMIT or (size >= _BLOCK and self.tokens[-1].text.endswith("\n"))

    def _paint(self, block: int) -> None:
        start, widget = self._blocks[block]
        last = block % len(self._blocks) == len(self._blocks) - 1
        end = len(self.tokens) if last else self._blocks[block + 1][0]
        parts = [
            coloured(token, cursor=start + i == self._cursor)
            for i, token in enumerate(self.tokens[start:end])
        ]
        text = Text().join(parts)
        if not last and text.plain.endswith("\n"):
            text.right_crop(1)  # the next block begins on a new line anyway
        widget.update(text)

    def select(self, index: int | None) -> Token | None:
        """Move the cursor to token `index`, or take it away; returns the token."""
        if not self.tokens:
            return None
        before, self._cursor = self._cursor, None
        if index is not None:
            self._cursor = max(0, min(index, len(self.tokens) - 1))
        for at in {before, self._cursor} - {None}:
            assert at is not None
            block = max(i for i, (start, _) in enumerate(self._blocks) if start <= at)
            self._paint(block)
            if at == self._cursor:
                self._blocks[block][1].scroll_visible(animate=False)
        return None if self._cursor is None else self.tokens[self._cursor]

    @property
    def cursor(self) -> int | None:
        return self._cursor
