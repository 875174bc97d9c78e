"""The side panel: live figures of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Sparkline, Static

from specchat.engine.events import Prefill
from specchat.engine.stats import Stats
from specchat.tui.kinds import Looks, legend, shown
from specchat.tui.messages import Depths, Ready
from specchat.tui.widgets import figures

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp

_WIDTH = 32  # characters of a bar


class Panel(VerticalScroll, can_focus=False):
    """Shows what it is given; knows nothing of the engine."""

    def compose(self) -> ComposeResult:
        yield Static(id="models", markup=False)
        yield Static(id="legend", markup=False)
        yield Static(id="figures", markup=False)
        yield Static("tokens per call, last rounds", classes="caption", markup=False)
        yield Sparkline([], id="spark")
        yield Static("draft length, and why", classes="caption", markup=False)
        yield Static(id="reason", markup=False)
        yield Static("where the time goes", classes="caption", markup=False)
        yield Static(id="time", markup=False)
        yield Static("context", classes="caption", markup=False)
        yield Static(id="context", markup=False)
        yield Static("accepted per draft", classes="caption", markup=False)
        yield Static(id="lengths", markup=False)

    def on_mount(self) -> None:
        self.clear()
        self.repaint()

    @property
    def _looks(self) -> Looks:
        return cast("SpecchatApp", self.app).looks

    def _put(self, id: str, content: Content | str) -> None:
        self.query_one(f"#{id}", Static).update(content)

    def repaint(self) -> None:
        """The theme changed."""
        self._put("legend", legend(self._looks))

    def say(self, text: str) -> None:
        """A line about the models, such as load progress."""
        self._put("models", Content(shown(text)))

    def models(self, ready: Ready) -> None:
        lines = [f"target {ready.target}", f"draft  {ready.draft or '– (lookup only)'}"]
        if ready.refusal:
            lines.append(f"no speculation: {ready.refusal}")
        self.say("\n".join(lines))

    def clear(self) -> None:
        """A new answer is about to come."""
        self.figures(Stats(), None, 0)

    def figures(self, stats: Stats, depths: Depths | None, n_ctx: int) -> None:
        prefill = stats.prefill
        if prefill is not None and not stats.rounds and stats.finish is None:
            self._put("figures", _prefill(prefill, self._looks))
        else:
            self._put("figures", figures.speed(stats, self._looks))
        self.query_one("#spark", Sparkline).data = [float(n) for n in stats.recent] or [0.0]
        self._put("reason", self._reason(stats))
        self._put("time", figures.time_split(stats, _WIDTH, self._looks))
        self._put("lengths", figures.histogram(stats, _WIDTH - 6, self._looks))
        if depths is not None:
            lines = [figures.meter("target", depths.target, n_ctx, _WIDTH - 18, self._looks)]
            if depths.draft is not None:
                lines.append(figures.meter("draft", depths.draft, n_ctx, _WIDTH - 18, self._looks))
            self._put("context", Content("\n").join(lines))

    def _reason(self, stats: Stats) -> Content:
        if stats.last is None:
            return Content("–")
        by = f" by {stats.last.drafter}" if stats.last.drafter else ""
        length = f"{stats.last.draft_length}{by}\n"
        return Content.assemble(length, (shown(stats.last.reason), "italic"))


def _prefill(prefill: Prefill, looks: Looks) -> Content:
    share = prefill.done / prefill.total if prefill.total else 1.0
    return Content.assemble(
        "reading the prompt\n",
        (figures.bar(share, _WIDTH).replace(" ", "·"), looks.draft),
        f"\n{prefill.done} of {prefill.total} tokens\n{prefill.cached} were cached",
    )
