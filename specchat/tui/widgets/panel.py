"""The side panel: live figures of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from specchat.engine.events import Prefill
from specchat.engine.stats import Stats
from specchat.tui.kinds import Looks, counted, legend, shown
from specchat.tui.messages import Depths, Ready
from specchat.tui.widgets import figures
from specchat.tui.widgets.quiet import put

if TYPE_CHECKING:
    from specchat.engine.engine import Settings
    from specchat.tui.app import SpecchatApp

_WIDTH = 36  # characters of a bar, with the scroll bar beside it


class Panel(VerticalScroll, can_focus=False):
    """Shows what it is given; knows nothing of the engine."""

    _settings: Settings | None = None
    _steers = True  # whether clients say how to draft

    def compose(self) -> ComposeResult:
        yield Static(id="models", markup=False)
        yield Static(id="settings", markup=False)
        yield Static(id="legend", markup=False)
        yield Static(id="figures", markup=False)
        with Vertical(id="live"):
            yield Static("", id="calls", classes="caption", markup=False)
            yield Static(id="spark", markup=False)
            yield Static("draft length, and why", classes="caption", markup=False)
            yield Static(id="reason", markup=False)
            yield Static("where the time goes", classes="caption", markup=False)
            yield Static(id="time", markup=False)
            yield Static("context", classes="caption", markup=False)
            yield Static(id="context", markup=False)
            yield Static("drafts by tokens accepted", classes="caption", markup=False)
            yield Static(id="lengths", markup=False)

    def on_mount(self) -> None:
        self.clear()
        self.repaint()

    @property
    def _looks(self) -> Looks:
        return cast("SpecchatApp", self.app).looks

    def _put(self, id: str, content: Content | str) -> None:
        put(
            self.query_one(f"#{id}", Static),
            Content(content) if isinstance(content, str) else content,
        )

    def repaint(self) -> None:
        """The theme changed."""
        self._put("legend", legend(self._looks))

    def say(self, text: str) -> None:
        """A line about the models, such as load progress."""
        self._put("models", Content(shown(text)))

    def models(self, ready: Ready) -> None:
        lines = [f"target {ready.target}", f"draft  {ready.draft or '– (lookup only)'}"]
        if ready.server:
            without = "– (lookup only)" if ready.steers else "the server does not tell"
            lines = [f"model  {ready.target}", f"at     {ready.server}"]
            lines.append(f"draft  {ready.draft or without}")
        self._steers = ready.steers
        if self._settings is not None:
            self.settings(self._settings)
        if ready.refusal:
            lines.append(f"no speculation: {ready.refusal}")
        self.say("\n".join(lines))

    def settings(self, settings: Settings) -> None:
        """What the next answer is made with."""
        self._settings = settings
        if not self._steers:
            words = f"temperature {settings.sampling.temperature:g}"
            self._put("settings", f"{words}\nhow to draft, the server decides")
            return
        length = "auto" if settings.draft_length is None else settings.draft_length
        words = f"rule {settings.rule}, temperature {settings.sampling.temperature:g}"
        self._put("settings", f"{words}\ndraft length {length}, drafter {settings.drafter}")

    def clear(self) -> None:
        """There are no figures, or those of a new answer are about to come."""
        self.figures(Stats(), None, 0)

    def figures(self, stats: Stats, depths: Depths | None, n_ctx: int) -> None:
        prefill = stats.prefill
        self.query_one("#live").display = stats.last is not None
        if not (stats.rounds or stats.tokens or stats.unknown):
            reading = prefill is not None and stats.finish is None
            self._put("figures", _prefill(prefill, self._looks) if reading and prefill else "")
            return
        self._put("figures", figures.speed(stats, self._looks))
        if stats.last is None:  # a server that does not report rounds
            return
        recent = list(stats.recent)[-_WIDTH:]
        self._put("calls", f"tokens per call, last {len(recent)}: {min(recent)} to {max(recent)}")
        self._put("spark", figures.columns(recent, _WIDTH, self._looks.draft))
        self._put("reason", self._reason(stats))
        self._put("time", figures.time_split(stats, _WIDTH, self._looks))
        self._put("lengths", figures.histogram(stats, _WIDTH - 9, self._looks))
        known = depths is not None and n_ctx
        used = {"target": depths.target, "draft": depths.draft} if depths and known else {}
        meters = [
            figures.meter(name, n, n_ctx, _WIDTH - 22, self._looks)
            for name, n in used.items()
            if n is not None
        ]
        self._put("context", Content("\n").join(meters))

    def _reason(self, stats: Stats) -> Content:
        assert stats.last is not None
        n, by = stats.last.draft_length, stats.last.drafter
        reason = stats.last.reason.removeprefix(f"draft length {n}: ")
        return Content.assemble(
            f"{counted(n, 'token')} by {by}\n" if by else f"{n}\n", (shown(reason), "italic")
        )


def _prefill(prefill: Prefill, looks: Looks) -> Content:
    share = prefill.done / prefill.total if prefill.total else 1.0
    return Content.assemble(
        "reading the prompt\n",
        (figures.bar(share, _WIDTH).replace(" ", "·"), looks.draft),
        f"\n{prefill.done} of {prefill.total} tokens\n{prefill.cached} were cached",
    )
