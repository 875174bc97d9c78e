"""The help screen's text, made from the keys that really are bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text
from textual.binding import Binding
from textual.content import Content
from textual.visual import VisualType
from textual.widget import Widget

from specchat.tui.commands import key_name, summary
from specchat.tui.kinds import MEANINGS, Looks
from specchat.tui.screens.main import MainScreen
from specchat.tui.widgets.history_list import ChatList
from specchat.tui.widgets.inspector import Inspector
from specchat.tui.widgets.message import MessageView

_INPUT = (
    ("Enter", "send (F8 can make Alt+Enter send instead)"),
    ("Ctrl+J, Alt+Enter", "break the line"),
    ("↑ ↓", "earlier questions"),
    ("/file PATH", "on a line of its own: attach a text file"),
    ("F1, Ctrl+P, Ctrl+Q", "help, all commands, quit"),
)


def help_text(looks: Looks) -> list[tuple[str, VisualType]]:
    """Titles of sections, and what they say."""
    colours = [
        Content.styled(f"{kind:<13}", style) + Content(MEANINGS[kind])
        for kind, style in looks.kinds.items()
    ]
    sections: list[tuple[str, VisualType]] = [
        ("Colours", Content("\n").join(colours)),
        ("Input", _table(_INPUT)),
    ]
    for title, owner in (
        ("Everywhere", MainScreen),
        ("On a message (Ctrl+↑ selects one)", MessageView),
        ("On a token (F2, or a click)", Inspector),
        ("In the list of chats (F6)", ChatList),
    ):
        sections.append((title, _table(_keys(owner))))
    return sections


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=19)
    for key, text in rows:
        table.add_row(Text(key, "bold"), Text(text))
    return table


def _keys(owner: type[Widget]) -> Iterator[tuple[str, str]]:
    for binding in owner.BINDINGS:
        assert isinstance(binding, Binding)
        text = binding.description
        if binding.action.startswith("screen.") or owner is MainScreen:
            text = summary(binding.action.removeprefix("screen.")) or text
        yield key_name(binding), text
