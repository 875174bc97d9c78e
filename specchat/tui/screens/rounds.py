"""The rounds of an answer as a timeline, one a line."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList, Static

from specchat.engine.events import Round, Token
from specchat.tui.kinds import Looks, shown
from specchat.tui.screens.dialogs import ListScreen
from specchat.tui.widgets.rounds import LEGEND, by_round, drawn_round, kept

_KEYS = "Enter inspects the round's tokens, Esc closes"


class RoundsScreen(ListScreen):
    """Below the list: what is known of the round under the cursor."""

    DEFAULT_CSS = """
    RoundsScreen OptionList > .option-list--option-highlighted,
    RoundsScreen OptionList:focus > .option-list--option-highlighted {
        background: $panel; color: $foreground; text-style: none;
    }
    """

    def __init__(
        self, rounds: Sequence[Round], tokens: Sequence[Token], looks: Looks, at: int
    ) -> None:
        self._rounds = rounds
        mine = by_round(tokens)
        lines = [
            Content.styled(
                f"{r.index:>3} {kept(r):>6} {1000 * r.total_seconds:>5.0f} ms  ", looks.muted
            )
            + drawn_round(r, mine.get(r.index, ()), looks)
            for r in rounds
        ]
        title = f"{len(rounds)} rounds, {len(tokens)} tokens\n{LEGEND}"
        super().__init__(title, lines, _KEYS, at)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        r = self._rounds[event.option_index]
        times = ", ".join(
            f"{name} {1000 * seconds:.0f} ms"
            for name, seconds in (
                ("draft", r.draft_seconds),
                ("verify", r.verify_seconds),
                ("sample", r.sample_seconds),
            )
        )
        by = f"proposed by {r.drafter}, " if r.drafter else ""
        self.query_one(".hint", Static).update(Content(f"{by}{times}\n{shown(r.reason)}\n{_KEYS}"))
