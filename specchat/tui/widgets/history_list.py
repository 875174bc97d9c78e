"""The saved conversations: a list to open from, with a search over all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content, Span
from textual.message import Message
from textual.style import Style
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from specchat.history import Conversation, SearchHit
from specchat.tui.kinds import titled

_WIDTH = 24  # columns of a title
_LEAD = 6  # characters before what a search found


class ChatList(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open"),
        Binding("r", "screen.rename", "Rename"),
        Binding("d,delete", "screen.delete_conversation", "Delete"),
        Binding("u", "screen.undo", "Undo"),
        Binding("slash", "screen.search", "Search", key_display="/"),
    ]


class HistoryList(Vertical):
    """What to list comes from the screen, which hears of searches and choices."""

    class Searched(Message):
        """The search field's text changed."""

        def __init__(self, query: str) -> None:
            super().__init__()
            self.query = query

    class Chosen(Message):
        """Open a conversation, at a message if a search found one."""

        def __init__(self, conversation_id: int, message_id: int | None) -> None:
            super().__init__()
            self.conversation_id, self.message_id = conversation_id, message_id

    def __init__(self) -> None:
        super().__init__(id="chats")
        self._targets: list[tuple[int, int | None]] = []

    def compose(self) -> ComposeResult:
        yield Input(placeholder="Search all chats", id="search", compact=True)
        yield ChatList(id="conversations", markup=False)

    @property
    def list(self) -> OptionList:
        return self.query_one(OptionList)

    @property
    def highlighted(self) -> int | None:
        """The conversation under the cursor."""
        at = self.list.highlighted
        return self._targets[at][0] if at is not None and at < len(self._targets) else None

    def show_conversations(self, conversations: Sequence[Conversation], opened: int | None) -> None:
        self._targets = [(c.id, None) for c in conversations]
        self._fill([_line(c, c.id == opened) for c in conversations])

    def show_hits(self, hits: Sequence[SearchHit]) -> None:
        self._targets = [(hit.conversation_id, hit.message_id) for hit in hits]
        self._fill([_hit(hit) for hit in hits])

    def _fill(self, lines: Sequence[Content]) -> None:
        at = self.list.highlighted
        self.list.clear_options()
        self.list.add_options([Option(line) for line in lines])
        if lines:
            self.list.highlighted = min(at or 0, len(lines) - 1)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Searched(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.list.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(*self._targets[event.option_index]))


def _line(c: Conversation, opened: bool) -> Content:
    style = Style(bold=True) if opened else Style()
    mark = "▸ " if opened else ""
    return Content.assemble((_title(mark + c.title), style), (f"\n{_ago(c.updated)}", "dim"))


def _title(text: str) -> str:
    """On one line."""
    line = titled(text) or "Untitled"
    return line if cell_len(line) <= _WIDTH else set_cell_size(line, _WIDTH - 1) + "…"


def _hit(hit: SearchHit) -> Content:
    snippet = Content(hit.snippet, [Span(a, b, Style(reverse=True)) for a, b in hit.highlights])
    first = hit.highlights[0][0] if hit.highlights else 0
    if first > _LEAD:  # what was found is to be on the one line
        snippet = Content("…") + snippet[first - _LEAD :]
    snippet = snippet.truncate(_WIDTH, ellipsis=True)
    return Content.assemble((_title(hit.title), Style(bold=True)), "\n", snippet)


def _ago(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 7 * 86400:
            return time.strftime("%Y-%m-%d", time.localtime(then))
        if seconds >= size:
            return f"{int(seconds // size)} {name} ago"
    return "just now"
