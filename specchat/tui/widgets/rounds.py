"""A round drawn as one line: the draft's tokens as boxes, then what the target added."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content
from textual.style import Style

from specchat.engine.events import Kind, Round, Token
from specchat.tui.kinds import Looks, shown

LEGEND = "filled: accepted, ×: refused, [ ]: no longer judged, → the target's own, + bonus"


def visible(text: str) -> str:
    """A token's text on one line; line ends and nothing at all get a sign."""
    return shown(text).replace("\n", "⏎") or "▯"


def quoted(text: str) -> str:
    return f"“{visible(text)}”"


def by_round(tokens: Iterable[Token]) -> dict[int, list[Token]]:
    found: dict[int, list[Token]] = {}
    for token in tokens:
        found.setdefault(token.round, []).append(token)
    return found


def drawn_round(r: Round, tokens: Iterable[Token], looks: Looks) -> Content:
    """`tokens` are those that came out of the round. Without colour the boxes still differ:
    accepted ones are reversed, the others have brackets.
    """
    parts: list[str | tuple[str, str | Style]] = []
    for i, (_, text) in enumerate(r.draft_tokens):
        if i < r.accepted:
            parts.append((visible(text), looks.kinds[Kind.ACCEPTED] + Style(reverse=True)))
        elif i == r.accepted and r.replacement is not None:
            parts += [("[×", looks.muted), (visible(text), looks.muted + Style(strike=True))]
            parts.append(("]", looks.muted))
        else:
            parts.append((f"[{visible(text)}]", looks.muted))
        parts.append(" ")
    for token in tokens:
        if token.kind is not Kind.ACCEPTED:
            sign = {Kind.RESAMPLED: "→ ", Kind.BONUS: "+ "}.get(token.kind, "")
            parts += [sign, (quoted(token.text), looks.kinds[token.kind])]
    return Content.assemble(*parts)


def kept(r: Round) -> str:
    return f"{r.accepted}/{r.draft_length}" if r.draft_length else "plain"
