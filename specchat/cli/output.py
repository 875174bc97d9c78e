"""How an answer is written: coloured for a terminal, plain for a pipe, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any, Protocol, TextIO

from specchat.engine.controller import Prediction
from specchat.engine.events import Event, Kind, Round, Token, Usage
from specchat.engine.stats import Stats
from specchat.engine.text import strip_control

# SGR codes: every kind has an attribute besides its colour, for NO_COLOR and the colour-blind.
_STYLES = {
    Kind.ACCEPTED: ("", "38;5;75"),  # blue
    Kind.RESAMPLED: ("4", "38;5;208"),  # underline, orange
    Kind.BONUS: ("1", "38;5;153"),  # bold, light blue
    Kind.PLAIN: ("", ""),
    Kind.UNKNOWN: ("", ""),
}


class Writer(Protocol):
    """Writes the events of one answer, then its end."""

    def add(self, event: Event) -> None: ...

    def end(self, stats: Stats, prediction: Prediction | None = None) -> None: ...


class PlainWriter:
    """The answer's text and nothing else, as it comes; `strip` for a terminal."""

    def __init__(self, strip: bool) -> None:
        self._strip = strip

    def add(self, event: Event) -> None:
        if isinstance(event, Token) and event.text:
            sys.stdout.write(strip_control(event.text) if self._strip else event.text)
            sys.stdout.flush()

    def end(self, stats: Stats, prediction: Prediction | None = None) -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()


class ColourWriter:
    """Tokens marked by kind; control characters of the model never reach the terminal."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def add(self, event: Event) -> None:
        if isinstance(event, Token) and event.text:
            sys.stdout.write(self.style(event.text_kind, strip_control(event.text)))
            sys.stdout.flush()

    def end(self, stats: Stats, prediction: Prediction | None = None) -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()

    def style(self, kind: Kind, text: str) -> str:
        attribute, colour = _STYLES[kind]
        codes = ";".join(c for c in (attribute, colour if self._colour else "") if c)
        return f"\x1b[{codes}m{text}\x1b[0m" if codes else text

    def legend(self) -> str:
        return " ".join(self.style(kind, str(kind)) for kind in _STYLES if kind != Kind.UNKNOWN)


class JsonWriter:
    """One JSON object per line: {"type": "token" | "round" | "summary", ...}."""

    def add(self, event: Event) -> None:
        if isinstance(event, Token):
            self._line("token", asdict(event))
        elif isinstance(event, Round):
            self._line("round", asdict(event))

    def end(self, stats: Stats, prediction: Prediction | None = None) -> None:
        reasoning = asdict(prediction) if prediction else None
        self._line("summary", summary(stats) | {"prediction": reasoning})

    def _line(self, kind: str, values: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({"type": kind} | values, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def summary(stats: Stats) -> dict[str, Any]:
    """The figures of an answer; seconds, tokens and ratios. Null: not measured."""
    finish = stats.finish
    speedup = stats.speedup
    return {
        "finish_reason": finish.reason if finish else None,
        "stop": finish.stop if finish else None,
        "usage": _counts(finish.usage) if finish else None,
        "prefill_seconds": finish.prefill_seconds if finish else None,
        "generate_seconds": finish.generate_seconds if finish else None,
        "tokens_per_second": stats.tokens_per_second,
        "tokens_per_call": stats.tokens_per_call,
        "acceptance": stats.acceptance,
        "draft_seconds": stats.draft_seconds if stats.last else None,
        "verify_seconds": stats.verify_seconds if stats.last else None,
        "sample_seconds": stats.sample_seconds if stats.last else None,
        "speedup": asdict(speedup) if speedup else None,
    }


def _counts(usage: Usage) -> dict[str, int | None]:
    counts = asdict(usage)
    unknown = counts.pop("unknown")
    return {name: None if name in unknown else count for name, count in counts.items()}


def summary_line(stats: Stats) -> str:
    """One line for people. Says what a remote server did not tell."""

    def told(name: str, text: str, what: str) -> str:
        return f"{what} not reported" if name in stats.unknown else text

    parts = [told("completion_tokens", f"{stats.tokens} tokens", "tokens")]
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.1f} tok/s")
    if stats.tokens_per_call is not None:
        parts.append(f"{stats.tokens_per_call:.2f} tok/call")
    if stats.acceptance is not None:
        parts.append(f"acceptance {stats.acceptance:.0%}")
    else:
        parts.append(told("drafted_tokens", "nothing drafted", "drafting"))
    if stats.note:
        parts[-1] += f" ({stats.note})"
    speedup = stats.speedup
    if speedup is not None:
        parts.append(f"speedup {speedup.ratio:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})")
    elif stats.acceptance is not None:
        parts.append("speedup not measured")
    if stats.finish is not None:
        parts += _prompt_counts(stats.finish.usage)
        if stats.finish.reason != "stop":
            parts.append(f"ended by {stats.finish.reason}")
    return " · ".join(parts)


def _prompt_counts(usage: Usage) -> list[str]:
    if "prompt_tokens" in usage.unknown:
        return []
    cached = "" if "cached_tokens" in usage.unknown else f", {usage.cached_tokens} cached"
    return [f"{usage.prompt_tokens} prompt tokens{cached}"]


def wants_colour(choice: str, stream: TextIO) -> tuple[bool, bool]:
    """(attributes, colours) for `--color` auto, always or never. NO_COLOR
    (https://no-color.org) takes the colours and leaves underline and bold.
    """
    if choice == "never":
        return False, False
    if choice == "always":
        return True, True
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return terminal, terminal and not os.environ.get("NO_COLOR")
