"""Everything known of the token under the cursor, and keys to move it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from specchat.engine.events import Alternative, Kind, Round, Token
from specchat.tui.kinds import MEANINGS, Looks, shown
from specchat.tui.widgets.figures import bar

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp


def quoted(text: str) -> str:
    """A token's text in quotes, line ends visible."""
    return "“" + shown(text).replace("\n", "⏎") + "”"


class Inspector(Vertical, can_focus=True):
    """Hidden until there is something to inspect; has the focus while it shows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "go(-1)", "‹ Token"),
        Binding("right", "go(1)", "Token ›"),
        Binding("up", "go(-10)", "10 back", show=False),
        Binding("down", "go(10)", "10 on", show=False),
        Binding("home", "go(-1000000)", "First", show=False),
        Binding("end", "go(1000000)", "Last", show=False),
        Binding("n", "next_refused(1)", "Next refused"),
        Binding("p", "next_refused(-1)", "Previous refused", show=False),
        *(Binding(str(n), f"take({n})", f"Take alternative {n}", show=False) for n in range(2, 10)),
        Binding("1", "take(1)", "1–9 branch here", key_display="1–9"),
        Binding("escape,i", "leave", "Leave"),
    ]

    class Go(Message):
        """Move the cursor by `step` tokens, or with `refused` to the next refusal."""

        def __init__(self, step: int, refused: bool = False) -> None:
            super().__init__()
            self.step, self.refused = step, refused

    class Take(Message):
        """Continue from the alternative."""

        def __init__(self, alternative: Alternative) -> None:
            super().__init__()
            self.alternative = alternative

    class Left(Message):
        """The user is done."""

    def __init__(self) -> None:
        super().__init__(id="inspector")
        self._alternatives: Sequence[Alternative] = ()

    def compose(self) -> ComposeResult:
        yield Static(id="token-kind", markup=False)
        with Horizontal(id="token-columns"):
            yield Static(id="token-numbers", markup=False)
            yield Static(id="token-target", markup=False)
            yield Static(id="token-draft", markup=False)
        yield Static(id="token-round", markup=False)

    def show(self, token: Token, round_: Round | None, index: int, total: int) -> None:
        looks = cast("SpecchatApp", self.app).looks
        # Where the draft's token was refused, it is an alternative too.
        self._alternatives = [a for a in token.alternatives if a.id != token.id]
        self._put("token-kind", _kind(token, index, total, looks))
        self._put("token-numbers", _numbers(token))
        self._put("token-target", self._target(token, looks))
        self._put("token-draft", _draft(token, looks))
        self._put("token-round", drawn_round(round_, looks) if round_ else "")

    def _put(self, id: str, content: Content | str) -> None:
        self.query_one(f"#{id}", Static).update(content)

    def _target(self, token: Token, looks: Looks) -> Content:
        if not token.alternatives:
            note = "no alternatives recorded\n(see F8, Settings)"
            return Content.styled(note, looks.muted)
        lines = [Content.styled("the target's best", looks.muted)]
        for a in token.alternatives:
            taken = a.id == token.id
            number = "•" if taken else str(self._alternatives.index(a) + 1)
            lines.append(_choice(number, a, "bold" if taken else ""))
        return Content("\n").join(lines)

    def action_go(self, step: int) -> None:
        self.post_message(self.Go(step))

    def action_next_refused(self, step: int) -> None:
        self.post_message(self.Go(step, refused=True))

    def action_take(self, number: int) -> None:
        if number <= len(self._alternatives):
            self.post_message(self.Take(self._alternatives[number - 1]))

    def action_leave(self) -> None:
        self.post_message(self.Left())


def _kind(token: Token, index: int, total: int, looks: Looks) -> Content:
    return Content.assemble(
        (quoted(token.text), looks.kinds[token.kind]),
        (f"  token {index + 1} of {total}, id {token.id}", looks.muted),
        f"\n{token.kind}: {MEANINGS[token.kind]}",
    )


def _numbers(token: Token) -> Content:
    lines = [f"p target {token.p:7.4f}"]
    lines.append("q draft        –" if token.q is None else f"q draft  {token.q:7.4f}")
    if token.acceptance is not None:
        lines.append(f"kept with {token.acceptance:6.4f}")
    if token.logprob is not None:
        lines.append(f"logprob  {token.logprob:7.3f}")
    if (r := token.rejected) is not None:
        lines += ["", f"refused here: {quoted(r.text)}", f"p {r.p:.4f}  q {r.q:.4f}"]
    return Content("\n".join(lines))


def _draft(token: Token, looks: Looks) -> Content:
    if not token.draft_alternatives:
        return Content("")
    lines = [Content.styled("the draft's best", looks.muted)]
    lines += [_choice(" ", a, "") for a in token.draft_alternatives]
    return Content("\n").join(lines)


def _choice(number: str, a: Alternative, style: str) -> Content:
    p = math.exp(a.logprob)
    return Content.styled(f"{number} {quoted(a.text):<14} {bar(p, 6)} {p:6.1%}", style)


def drawn_round(r: Round, looks: Looks) -> Content:
    """A round as boxes: accepted ones filled, refused ones struck, then the replacement."""
    parts: list[str | tuple[str, str | Style]] = [(f"round {r.index:<4} ", looks.muted)]
    filled, struck = looks.kinds[Kind.ACCEPTED], looks.muted
    for i, (_, text) in enumerate(r.draft_tokens):
        kept = i < r.accepted
        style = filled + Style(reverse=True) if kept else struck + Style(strike=True)
        parts += [(quoted(text)[1:-1] or "▯", style), " "]
    if r.replacement is not None:
        kind = Kind.RESAMPLED if r.accepted < r.draft_length else Kind.BONUS
        parts += ["→ ", (quoted(r.replacement[1]), looks.kinds[kind])]
    kept_of = f" {r.accepted} of {r.draft_length} kept" if r.draft_length else "plain"
    parts.append((kept_of, looks.muted))
    return Content.assemble(*parts)
