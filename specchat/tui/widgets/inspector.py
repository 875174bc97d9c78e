"""Everything known of the token under the cursor, and keys to move it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len, set_cell_size
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from specchat.engine.events import Alternative, Kind, Round, Token
from specchat.tui.kinds import MEANINGS, Looks
from specchat.tui.widgets.figures import bar
from specchat.tui.widgets.rounds import drawn_round, kept, quoted

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp


_AROUND = 47  # columns that everything but the tokens' texts takes


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
        Binding("1", "take(1)", "Go on with another", key_display="1–9"),
        Binding("escape,i", "leave", "Leave"),
    ]

    class Go(Message):
        """Move the cursor by `step` tokens, or with `refused` to the next refusal."""

        def __init__(self, step: int, refused: bool = False) -> None:
            super().__init__()
            self.step, self.refused = step, refused

    class Take(Message):
        """Continue with `token` in the place of the one under the cursor."""

        def __init__(self, token: Token) -> None:
            super().__init__()
            self.token = token

    class Left(Message):
        """The user is done."""

    def __init__(self) -> None:
        super().__init__(id="inspector")
        self._choices: list[Token] = []
        self._shown: tuple[Token, Round | None, Sequence[Token], str] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="token-kind", markup=False)
        with Horizontal(id="token-columns"):
            yield Static(id="token-numbers", markup=False)
            yield Static(id="token-table", markup=False)
        yield Static(id="token-refused", markup=False)
        yield Static(id="token-round", markup=False)

    def show(self, token: Token, round_: Round | None, mates: Sequence[Token], place: str) -> None:
        """`mates` are the tokens of the same round, `place` says where this one stands."""
        self._shown = token, round_, mates, place
        looks = cast("SpecchatApp", self.app).looks
        self._choices = choices(token)
        self._put("token-kind", _kind(token, place, looks))
        self._put("token-numbers", _numbers(token, looks))
        width = max(11, min(24, self.size.width - _AROUND))
        self._put("token-table", _table(token, self._choices, width, looks))
        self.query_one("#token-refused").display = token.rejected is not None
        self._put("token-refused", _refused(token, self._choices, looks))
        if round_ is None:
            self._put("token-round", "")
        else:
            head = Content.styled(f"round {round_.index}, {kept(round_)}  ", looks.muted)
            self._put("token-round", head + drawn_round(round_, mates, looks))

    def on_resize(self) -> None:
        if self._shown is not None:
            self.show(*self._shown)

    def _put(self, id: str, content: Content | str) -> None:
        self.query_one(f"#{id}", Static).update(content)

    def action_go(self, step: int) -> None:
        self.post_message(self.Go(step))

    def action_next_refused(self, step: int) -> None:
        self.post_message(self.Go(step, refused=True))

    def action_take(self, number: int) -> None:
        if number <= len(self._choices):
            self.post_message(self.Take(self._choices[number - 1]))

    def action_leave(self) -> None:
        self.post_message(self.Left())


def choices(token: Token) -> list[Token]:
    """What the user could put in the token's place: the target's alternatives, and the draft
    token that was refused. Their `p` is the raw model's, of the latter the sampler's.
    """
    found = [
        Token(a.id, a.text, Kind.PLAIN, Kind.PLAIN, token.round, math.exp(a.logprob),
              logprob=a.logprob)
        for a in token.alternatives
        if a.id != token.id
    ]  # fmt: skip
    r = token.rejected
    if r is not None and r.id not in {token.id, *(t.id for t in found)}:
        found.append(Token(r.id, r.text, Kind.PLAIN, Kind.PLAIN, token.round, r.p))
    return found[:9]


def _kind(token: Token, place: str, looks: Looks) -> Content:
    nothing = "" if token.text else " (ends the answer, or a character that goes on)"
    id = f", id {token.id}" if token.id >= 0 else ""
    return Content.assemble(
        (quoted(token.text), looks.kinds[token.kind]),
        (f"{nothing}  token {place}{id}\n", looks.muted),
        (str(token.kind), looks.kinds[token.kind]),
        f": {MEANINGS[token.kind]}",
    )


def _numbers(token: Token, looks: Looks) -> Content:
    lines = ["p target        –" if token.p is None else f"p target   {token.p:6.4f}"]
    lines.append("q draft         –" if token.q is None else f"q draft    {token.q:6.4f}")
    if token.acceptance is not None:
        lines.append(f"acceptance {token.acceptance:6.4f}")
    if token.logprob is not None and all(a.id != token.id for a in token.alternatives):
        lines.append(f"(raw    {math.exp(token.logprob):10.2g})")
    return Content.assemble(("after the sampler\n", looks.muted), "\n".join(lines))


def _table(token: Token, taken: Sequence[Token], width: int, looks: Looks) -> Content:
    """The best tokens of target and draft beside each other."""
    if not token.alternatives:
        note = "no alternatives were recorded\n(F8, alternatives)"
        return Content.styled(note, looks.muted)
    target = {a.id: a for a in token.alternatives}
    draft = {a.id: a for a in token.draft_alternatives}
    numbers = {t.id: str(i) for i, t in enumerate(taken, 1)} | {token.id: "•"}
    head = f"  {set_cell_size('raw model', width)} {'target':<11}" + ("  draft" if draft else "")
    lines = [Content.styled(head, looks.muted)]
    for id, a in (target | draft).items():
        name = set_cell_size(_fitted(quoted(a.text), width), width)
        p = _share(target.get(id), looks.verify)
        q = _share(draft.get(id), looks.draft) if draft else Content()
        row = Content(f"{numbers.get(id, ' ')} {name} ") + p + Content("  ") + q
        lines.append(row.stylize("bold") if id == token.id else row)
    return Content("\n").join(lines)


def _fitted(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _share(a: Alternative | None, style: Style) -> Content:
    """A bar and a percentage, ten columns; a dash for what is not among the best."""
    if a is None:
        return Content(f"{'–':>10} ")
    p = math.exp(a.logprob)
    return Content.assemble((bar(p, 4), style), f" {p:6.1%}")


def _refused(token: Token, taken: Sequence[Token], looks: Looks) -> Content:
    r = token.rejected
    if r is None:
        return Content()
    number = next((f" ({i})" for i, t in enumerate(taken, 1) if t.id == r.id), "")
    return Content.assemble(
        ("refused here: ", looks.muted),
        (quoted(r.text), Style(strike=True)),
        number,
        f"  p {r.p:.4f}, q {r.q:.4f}",
    )
