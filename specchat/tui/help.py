"""The help screen's text, made from the keys that really are bound."""

from __future__ import annotations

from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget

from specchat.tui.commands import summary
from specchat.tui.kinds import MEANINGS, Looks
from specchat.tui.screens.main import MainScreen
from specchat.tui.widgets.inspector import Inspector
from specchat.tui.widgets.message import MessageView

_INPUT = (
    ("Enter", "send (F8 can make Alt+Enter send instead)"),
    ("Ctrl+J, Alt+Enter", "break the line"),
    ("↑ ↓", "earlier questions"),
    ("/file PATH", "on a line of its own: attach a text file"),
    ("F1, Ctrl+P, Ctrl+Q", "help, all commands, quit"),
)


def help_text(looks: Looks) -> Content:
    lines = ["Colours\n"]
    parts: list[Content | str] = list(lines)
    for kind, style in looks.kinds.items():
        parts += [Content.styled(f"  {kind:<12}", style), f"{MEANINGS[kind]}\n"]
    parts.append("\nInput\n")
    parts += [f"  {key:<20}{text}\n" for key, text in _INPUT]
    for title, owner in (
        ("Everywhere", MainScreen),
        ("On a message (Ctrl+↑ selects one)", MessageView),
        ("On a token (F2)", Inspector),
    ):
        parts.append(f"\n{title}\n")
        parts += _keys(owner)
    return Content.assemble(*parts)


def _keys(owner: type[Widget]) -> list[str]:
    lines = []
    for binding in owner.BINDINGS:
        assert isinstance(binding, Binding)
        text = binding.description
        if binding.action.startswith("screen.") or owner is MainScreen:
            text = summary(binding.action.removeprefix("screen.")) or text
        key = binding.key_display or binding.key.replace(",", ", ")
        lines.append(f"  {key:<20}{text}\n")
    return lines
