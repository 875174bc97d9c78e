"""The input: several lines, grows, remembers what was asked."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import TextArea


class Prompt(TextArea):
    """Enter sends, ctrl+j or alt+enter breaks the line, ↑ on the first line recalls."""

    class Submitted(Message):
        """The user sent `text`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__(id="prompt", compact=True)
        self._history: list[str] = []
        self._at = 0

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            self._stop(event)
            self._submit()
        elif event.key in ("ctrl+j", "alt+enter", "shift+enter"):
            self._stop(event)
            self.insert("\n")
        elif event.key == "up" and self.cursor_location[0] == 0 and self._at > 0:
            self._stop(event)
            self._recall(self._at - 1)
        elif event.key == "down" and self._last_line() and self._at < len(self._history):
            self._stop(event)
            self._recall(self._at + 1)
        else:
            await super()._on_key(event)

    def _stop(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    def _last_line(self) -> bool:
        return self.cursor_location[0] == self.document.line_count - 1

    def _submit(self) -> None:
        text = self.text.strip()
        if text:
            self._history.append(text)
            self._at = len(self._history)
            self.clear()
            self.post_message(self.Submitted(text))

    def _recall(self, at: int) -> None:
        self._at = at
        self.text = self._history[at] if at < len(self._history) else ""
        self.move_cursor(self.document.end)
