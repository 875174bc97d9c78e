"""The line that searches the open conversation."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

_KEYS = "Enter or ↑ earlier, ↓ later, Esc closes"


class FindLine(Input):
    """Asks for places; how many there are is told to it."""

    class Wanted(Message):
        """Show the place of `text` that is `step` (1 or -1) after the one shown last."""

        def __init__(self, text: str, step: int) -> None:
            super().__init__()
            self.text, self.step = text, step

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,up", "go(-1)", "Earlier", key_display="↑"),
        Binding("down", "go(1)", "Later", key_display="↓"),
    ]

    def __init__(self) -> None:
        super().__init__(placeholder="Find in this chat", id="find", compact=True)

    def action_go(self, step: int) -> None:
        if self.value:
            self.post_message(self.Wanted(self.value, step))

    def tell(self, count: str = "") -> None:
        """Such as "3 of 12"."""
        self.border_title = f"{count} · {_KEYS}" if count else _KEYS
