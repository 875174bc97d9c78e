"""Numbers as text and bars, for the panel and the inspector."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from specchat.engine.stats import Stats
from specchat.tui.kinds import Looks

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = " ▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """A horizontal bar, exact to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def columns(values: Sequence[int], width: int, style: Style) -> Content:
    """The last values as columns, two lines high, from zero on."""
    values = values[-width:]
    heights = [-(-16 * v // max(values)) for v in values]
    upper = "".join(_HEIGHTS[max(0, h - 8)] for h in heights)
    lower = "".join(_HEIGHTS[min(8, h)] for h in heights)
    return Content.styled(f"{upper}\n{lower}", style)


def meter(name: str, used: int, size: int, width: int, looks: Looks) -> Content:
    """How much of a context is used, in tokens."""
    share = used / size if size else 0.0
    marked = looks.verify if share > 0.9 else looks.draft
    return Content.assemble(
        (f"{name:<7}", looks.muted),
        (bar(share, width).replace(" ", "·"), marked),
        f" {used:,} of {size:,}",
    )


def speed(stats: Stats, looks: Looks) -> Content:
    """The figures that matter most. What a remote server does not tell shows as unknown."""

    def count(name: str, text: str) -> str:
        return "unknown" if name in stats.unknown else text

    tokens = count("completion_tokens", f"{stats.tokens} tokens")
    calls = count("target_calls", f"{stats.rounds} calls")
    kept = count("accepted_tokens", f"{stats.accepted} of {stats.drafted}")
    lines = [
        _figure(_number(stats.tokens_per_second, ".1f"), "tok/s", tokens, looks),
        _figure(_number(stats.tokens_per_call, ".2f"), "tok/call", calls, looks),
        _figure(_number(stats.acceptance, ".0%"), "accepted", kept, looks),
    ]
    if stats.note:
        lines.append(Content.styled(stats.note, looks.muted))
    ratio = stats.speedup
    if ratio is None:
        lines.append(_figure("–", "speedup", "not measured", looks))
    else:
        interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
        lines.append(_figure(f"{ratio.ratio:.2f}×", "speedup", interval, looks))
    return Content("\n").join(lines)


def _number(value: float | None, format: str) -> str:
    return "–" if value is None else f"{value:{format}}"


def _figure(value: str, name: str, more: str, looks: Looks) -> Content:
    bold = Style(bold=True)
    return Content.assemble((f"{value:>7}", bold), f" {name:<9}", (more, looks.muted))


def time_split(stats: Stats, width: int, looks: Looks) -> Content:
    """Time by draft, verify and sample: one bar and its shares."""
    total = stats.seconds or 1.0
    parts = (
        ("draft", stats.draft_seconds, looks.draft, "█"),
        ("verify", stats.verify_seconds, looks.verify, "▓"),
        ("sample", stats.sample_seconds, looks.sample, "░"),
    )
    line: list[tuple[str, Style]] = []
    names: list[tuple[str, Style]] = []
    left = width
    for i, (name, seconds, style, mark) in enumerate(parts):
        cells = left if i == len(parts) - 1 else min(left, round(width * seconds / total))
        left -= cells
        line.append((mark * cells, style))
        names.append((f"{mark} {name} {seconds / total:.0%} ", style))
    return Content.assemble(*line, "\n", *names)


def histogram(stats: Stats, width: int, looks: Looks) -> Content:
    """How many drafts had 0, 1, 2 … tokens accepted."""
    most = max(stats.lengths.values(), default=1)
    rows = [
        Content.assemble(
            f"{length:>3} ",
            (bar(stats.lengths[length] / most, width), looks.draft),
            (f" {stats.lengths[length]}", looks.muted),
        )
        for length in range(max(stats.lengths, default=0) + 1)
    ]
    return Content("\n").join(rows)
