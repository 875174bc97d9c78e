"""How each kind of token looks: always an attribute besides the colour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from textual.color import Color
from textual.content import Content, Span
from textual.style import Style

from specchat.engine.events import Kind, Token
from specchat.engine.text import strip_control

MEANINGS = {
    Kind.ACCEPTED: "proposed by the draft, kept by the target",
    Kind.RESAMPLED: "drawn from the target in place of a refused draft token",
    Kind.BONUS: "drawn from the target after a whole draft was kept",
    Kind.PLAIN: "drawn from the target without a draft",
    Kind.UNKNOWN: "the server does not say where it came from",
}
_TAB = "    "
_FENCE = re.compile(r"(?:`{3,}|~{3,})[\w+#.-]*")


@dataclass(frozen=True, slots=True)
class Looks:
    """Styles that suit a theme. `draft`, `verify` and `sample` are parts of a round's time."""

    kinds: dict[Kind, Style]
    draft: Style
    verify: Style
    sample: Style
    muted: Style


def looks(dark: bool, *, ansi: bool = False, colour: bool = True) -> Looks:
    """Blue and orange, which the colour-blind tell apart. `ansi` keeps to the terminal's own
    sixteen colours. Without colour the attributes alone must do, so plain tokens get one.
    """
    if not colour:
        kinds = (Style(), Style(underline=True), Style(bold=True), Style(italic=True))
        return _looks(kinds, (Style(bold=True), Style(), Style(dim=True)))
    if ansi:
        names = ("ansi_bright_blue", "ansi_yellow", "ansi_bright_cyan")
        names = names if dark else ("ansi_blue", "ansi_red", "ansi_cyan")
    else:
        names = ("#6cb6ff", "#f0a840", "#b9dcff") if dark else ("#0b57d0", "#a84300", "#4f86c6")
    blue, orange, light = (Style(foreground=Color.parse(name)) for name in names)
    kinds = (blue, orange + Style(underline=True), light + Style(bold=True), Style())
    return _looks(kinds, (blue, orange, light))


def _looks(kinds: Sequence[Style], times: Sequence[Style]) -> Looks:
    order = (Kind.ACCEPTED, Kind.RESAMPLED, Kind.BONUS, Kind.PLAIN)
    by_kind = dict(zip(order, kinds, strict=True)) | {Kind.UNKNOWN: Style()}
    draft, verify, sample = times
    return Looks(by_kind, draft, verify, sample, Style(dim=True))


def shown(text: str) -> str:
    """Text as data for the screen: no control sequences, tabs as spaces."""
    return strip_control(text.replace("\r\n", "\n")).replace("\t", _TAB)


def titled(text: str) -> str:
    """A conversation's title as one line without the marks of code blocks; may be empty."""
    return " ".join(_FENCE.sub(" ", shown(text)).split())


def counted(n: int, name: str) -> str:
    return f"{n:,} {name}" if n == 1 else f"{n:,} {name}s"


def coloured(
    tokens: Sequence[Token], looks: Looks, *, first: int = 0, cursor: int | None = None
) -> Content:
    """The tokens' text, each in its look. Every token knows its index (from `first` on) as
    "token" in its style's meta, for the mouse; the one at `cursor` is shown reversed.
    """
    pieces, spans, at = [], [], 0
    for index, token in enumerate(tokens, first):
        piece = shown(token.text)
        style = looks.kinds[token.text_kind] + Style.from_meta({"token": index})
        if index == cursor:
            style += Style(reverse=True)
            piece = piece.replace("\n", "⏎\n") if piece.startswith("\n") else piece or "▯"
        pieces.append(piece)
        spans.append(Span(at, at + len(piece), style))
        at += len(piece)
    return Content("".join(pieces), spans)


def legend(looks: Looks) -> Content:
    """One line that names the kinds in their own looks."""
    told = [(kind, style) for kind, style in looks.kinds.items() if kind is not Kind.UNKNOWN]
    parts = [Content.styled(str(kind), style) for kind, style in told]
    return Content("  ").join(parts)
