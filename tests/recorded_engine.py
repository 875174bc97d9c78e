"""An engine that replays events instead of computing them, for tests and for measuring the app.

It stands where `Engine` does in `tui.session`. The events are of the real kinds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

from specchat.engine.engine import Cancel, Settings
from specchat.engine.events import (
    Alternative,
    Event,
    Finish,
    FinishReason,
    Kind,
    Prefill,
    Rejected,
    Round,
    Token,
    Usage,
)
from specchat.engine.messages import Message
from specchat.engine.stats import Stats

ALTERNATIVES = (Alternative(7, "same", -0.7), Alternative(9, " other", -1.2))
KINDS = (Kind.ACCEPTED, Kind.ACCEPTED, Kind.RESAMPLED, Kind.BONUS, Kind.PLAIN)


def token(text: str, kind: Kind = Kind.ACCEPTED, round_: int = 0) -> Token:
    refused = Rejected(8, " refused", 0.1, 0.6) if kind is Kind.RESAMPLED else None
    return Token(
        7, text, kind, kind, round_, 0.5, 0.4, 0.9, refused, -0.7, ALTERNATIVES, ALTERNATIVES[1:]
    )


def one_round(index: int, kept: int = 2) -> Round:
    drafted = tuple((i, f" d{i}") for i in range(3))
    return Round(
        index, "draft", 3, kept, kept + 1, 40 + index * 4, 0.01, 0.03, 0.001, 0.041,
        drafted, drafted[kept:], (5, " new"), "drafting while it pays",
    )  # fmt: skip


class Recorded:
    """`texts` become one token and one round each. While `hold` is not set, the answer waits
    after its first token; `rate` is tokens per second (0: as fast as can be).
    """

    def __init__(
        self, texts: Sequence[str] = ("Hello", " world", ".\n"), *, rate: float = 0.0,
        thinking: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.texts, self.rate = texts, rate
        self.asked: list[list[Message]] = []
        self.settings: list[Settings] = []
        self.continued: list[bool] = []
        self.error: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()
        self.closed = False
        self.target = SimpleNamespace(path=Path("target.gguf"), n_ctx=512, max_batch=512)
        self.draft = SimpleNamespace(path=Path("draft.gguf"))
        self.refusal = ""
        self.template = SimpleNamespace(thinking_tags=thinking, render=lambda messages: "")

    # What `Service` asks of an engine; there is no model, so nothing waits for a call.
    models: Sequence[object] = ()
    idle_slots = 1
    calibration = None

    def observe(self, *call: object) -> None:
        pass

    def share(self, busy: int) -> None:
        pass

    def should_wait(self, prompt: Sequence[int]) -> bool:
        return False

    def draft_depth(self, prompt: Sequence[int]) -> int:
        return 17

    def chat_settings(self, settings: Settings) -> Settings:
        return settings

    def chat_prompt(
        self, messages: Sequence[Message], *, continue_final: bool = False
    ) -> list[int]:
        self.asked.append(list(messages))
        self.continued.append(continue_final)
        return [1, 2, 3]

    def start(
        self, prompt: Sequence[int], settings: Settings, cancel: Cancel, priority: int
    ) -> Iterator[Event]:
        self.settings.append(settings)
        if self.error is not None:
            raise self.error
        return self._events(cancel)

    def _events(self, cancel: Cancel) -> Iterator[Event]:
        yield Prefill(5, 5, 2)
        start = time.monotonic()
        for i, text in enumerate(self.texts):
            yield token(text, KINDS[i % len(KINDS)], i)
            yield one_round(i, i % 4)
            while not self.hold.is_set() and not cancel.is_set():
                time.sleep(0.005)
            if cancel.is_set():
                break
            if self.rate:
                time.sleep(max(0.0, start + (i + 1) / self.rate - time.monotonic()))
        reason = FinishReason.CANCELLED if cancel.is_set() else FinishReason.STOP
        usage = Usage(prompt_tokens=5, completion_tokens=3, target_calls=3, drafted_tokens=9)
        yield Finish(reason, usage, 0.1, 0.2)

    def stats(self) -> Stats:
        return Stats(lambda depth: 0.04)

    def close(self) -> None:
        self.closed = True
