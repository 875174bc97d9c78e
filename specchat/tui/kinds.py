"""How each kind of token looks: always an attribute besides the colour."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from specchat.engine.events import Kind, Token
from specchat.engine.text import strip_control

STYLES = {
    Kind.ACCEPTED: Style(color="#56b4e9"),
    Kind.RESAMPLED: Style(color="#e69f00", underline=True),
    Kind.BONUS: Style(color="#b5dcf5", bold=True),
    Kind.PLAIN: Style(),
}
MEANINGS = {
    Kind.ACCEPTED: "proposed by the draft, kept by the target",
    Kind.RESAMPLED: "drawn from the target in place of a refused draft token",
    Kind.BONUS: "drawn from the target after a whole draft was kept",
    Kind.PLAIN: "drawn from the target without a draft",
}


def coloured(token: Token, *, cursor: bool = False) -> Text:
    """The token's text as data: no markup, no control sequences."""
    style = STYLES[token.text_kind]
    return Text(strip_control(token.text), style + Style(reverse=True) if cursor else style)


def legend() -> Text:
    """One line that names the kinds in their own looks."""
    parts = [Text(str(kind), STYLES[kind]) for kind in STYLES]
    return Text("  ").join(parts)
