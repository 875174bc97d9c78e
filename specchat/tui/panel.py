"""The side panel: live figures of the answer, or the token under the cursor."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Sparkline, Static

from specchat.engine.events import Round, Token
from specchat.engine.stats import Stats
from specchat.engine.text import strip_control
from specchat.tui.kinds import MEANINGS, STYLES, legend

_BAR = 24  # characters of a bar


class Panel(VerticalScroll):
    """Shows what it is given; knows nothing of the engine."""

    def compose(self) -> ComposeResult:
        yield Static(legend(), id="legend", markup=False)
        yield Static(id="token", markup=False)
        yield Static("Loading…", id="figures", markup=False)
        yield Static("tokens per call, last rounds", classes="caption", markup=False)
        yield Sparkline([], id="spark")
        yield Static(id="reason", markup=False)

    def figures(self, stats: Stats, n_ctx: int) -> None:
        self.query_one("#figures", Static).update(_figures(stats, n_ctx))
        self.query_one("#spark", Sparkline).data = list(map(float, stats.recent))
        reason = stats.last.reason if stats.last else ""
        self.query_one("#reason", Static).update(Text(reason, "italic"))

    def say(self, text: str) -> None:
        """Replace the figures by a line, such as load progress."""
        self.query_one("#figures", Static).update(Text(strip_control(text)))

    def token(self, token: Token | None, round_: Round | None) -> None:
        """The inspector: everything known of one token."""
        shown = Text() if token is None else _details(token, round_)
        self.query_one("#token", Static).update(shown)


def _figures(stats: Stats, n_ctx: int) -> Text:
    lines = []
    prefill, finish, speedup = stats.prefill, stats.finish, stats.speedup
    if prefill is not None and not stats.rounds:
        lines.append(f"reading the prompt {prefill.done}/{prefill.total}")
    lines.append(f"{stats.tokens_per_second:6.1f} tok/s   {stats.tokens} tokens")
    lines.append(f"{stats.tokens_per_call:6.2f} tok/call")
    kept = stats.acceptance
    lines.append("     - acceptance" if kept is None else f"{kept:6.0%} acceptance")
    lines.append(
        "     - speedup (not measured)"
        if speedup is None
        else f"{speedup.ratio:5.2f}x speedup ({speedup.low:.2f} to {speedup.high:.2f})"
    )
    if stats.last is not None:
        drafter = f" by {stats.last.drafter}" if stats.last.drafter else ""
        lines.append(f"{stats.last.draft_length:6d} draft length{drafter}")
    text = Text("\n".join(lines) + "\n\n")
    text.append_text(_split(stats))
    if stats.last is not None and n_ctx:
        used = stats.last.depth + stats.last.emitted
        filled = round(_BAR * used / n_ctx)
        text.append(f"\ncontext {used}/{n_ctx}\n" + "█" * filled + "░" * (_BAR - filled))
    if stats.lengths:
        text.append("\n\naccepted per draft\n")
        most = max(stats.lengths.values())
        for length in range(max(stats.lengths) + 1):
            share = stats.lengths[length] / most
            text.append(f"{length:3d} {'▇' * round(share * (_BAR - 4)):<20}\n")
    if finish is not None:
        text.append(f"\nended: {finish.reason}, {finish.usage.cached_tokens} prompt tokens cached")
    return text


def _split(stats: Stats) -> Text:
    """Time by draft, verify and sample as one bar."""
    text = Text("time  draft ▒  verify █  sample ░\n")
    total = stats.seconds or 1.0
    parts = ((stats.draft_seconds, "▒"), (stats.verify_seconds, "█"), (stats.sample_seconds, "░"))
    for seconds, mark in parts:
        text.append(mark * round(_BAR * seconds / total))
    return text


def _details(token: Token, round_: Round | None) -> Text:
    text = Text("\n")
    text.append(repr(strip_control(token.text)), STYLES[token.kind])
    text.append(f"  id {token.id}\n{token.kind}: {MEANINGS[token.kind]}\n")
    text.append(f"p(target) {token.p:.3f}")
    if token.q is not None:
        text.append(f"   q(draft) {token.q:.3f}")
    if token.acceptance is not None:
        text.append(f"\nacceptance probability {token.acceptance:.3f}")
    if token.rejected is not None:
        text.append(
            f"\nreplaced the draft's {strip_control(token.rejected.text)!r}"
            f" (p {token.rejected.p:.3f}, q {token.rejected.q:.3f})"
        )
    if round_ is not None:
        text.append(f"\nround {round_.index}: ")
        for i, (_, piece) in enumerate(round_.draft_tokens):
            kept = i < round_.accepted
            text.append(f"[{strip_control(piece)}]", "reverse" if kept else "strike")
        if round_.replacement is not None:
            text.append(f" → {strip_control(round_.replacement[1])!r}")
        text.append(f"\n{round_.accepted} of {round_.draft_length} kept\n")
    return text
