"""The input: several lines, grows, remembers what was asked."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import TextArea

_NEWLINE_KEYS = ("ctrl+j", "alt+enter", "shift+enter")


class Prompt(TextArea):
    """`submit_key` sends; every other enter breaks the line. ↑ on the first line recalls."""

    class Submitted(Message):
        """The user sent `text`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__(id="prompt", compact=True, placeholder="Ask something…")
        self.submit_key = "enter"
        self.past: list[str] = []
        self._at = 0
        self._draft = ""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == self.submit_key:
            self._take(event)
            self._submit()
        elif event.key in _NEWLINE_KEYS or event.key == "enter":
            self._take(event)
            self.insert("\n")
        elif event.key == "up" and self.cursor_location[0] == 0 and self._at > 0:
            self._take(event)
            self._recall(self._at - 1)
        elif event.key == "down" and self._on_last_line() and self._at < len(self.past):
            self._take(event)
            self._recall(self._at + 1)
        else:
            await super()._on_key(event)

    def _take(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    def _on_last_line(self) -> bool:
        return self.cursor_location[0] == self.document.line_count - 1

    def remember(self, questions: list[str]) -> None:
        """Questions to recall, oldest first, in place of the earlier ones."""
        self.past = questions
        self._at = len(questions)

    def _submit(self) -> None:
        text = self.text.strip("\n")
        if text.strip():
            self.post_message(self.Submitted(text))

    def sent(self, text: str) -> None:
        """`text` was accepted: empty the input and remember it."""
        self.past.append(text)
        self._at = len(self.past)
        self._draft = ""
        self.clear()

    def load(self, text: str) -> None:
        """Put `text` in, cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def _recall(self, at: int) -> None:
        if self._at == len(self.past):
            self._draft = self.text
        self._at = at
        self.load(self.past[at] if at < len(self.past) else self._draft)
