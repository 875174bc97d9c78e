"""Running figures of one answer, for a status line, a panel or a summary."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from specchat.engine.events import Event, Finish, Prefill, Round, Tally

_BASELINE_EVERY = 8  # rounds between two looks at the baseline, which changes slowly


@dataclass(frozen=True, slots=True)
class Speedup:
    """Measured speed against plain decoding: a ratio with its 95 % interval."""

    ratio: float
    low: float
    high: float


class Stats:
    """Sums over the rounds of an answer, or a remote server's own. Feed it every event.

    `plain_seconds(depth)` is the live baseline: what one token costs without a draft;
    `plain_spread` its relative standard error. `unknown` names the counts of `Usage` that a
    remote server does not tell, `note` whose counts it tells.
    """

    def __init__(
        self,
        plain_seconds: Callable[[int], float] | None = None,
        plain_spread: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._plain_seconds, self._plain_spread = plain_seconds, plain_spread
        self.rounds = self.tokens = self.drafted = self.accepted = 0
        self.seconds = self.draft_seconds = self.verify_seconds = self.sample_seconds = 0.0
        self.lengths: Counter[int] = Counter()  # accepted tokens by drafted round
        self.recent: deque[int] = deque(maxlen=64)  # tokens of the last rounds
        self.prefill: Prefill | None = None
        self.finish: Finish | None = None
        self.last: Round | None = None
        self.unknown: Collection[str] = ()
        self.note = ""
        self._baseline = 0.0  # seconds of a plain token, lately
        self._pairs: list[tuple[float, float]] = []  # seconds plain would take, seconds taken

    def add(self, event: Event) -> None:
        if isinstance(event, Round):
            self._add_round(event)
        elif isinstance(event, Prefill):
            self.prefill = event
        elif isinstance(event, Tally):
            self._add_tally(event)
        elif isinstance(event, Finish):
            self.finish = event

    def _add_round(self, r: Round) -> None:
        self.last = r
        self.rounds += 1
        self.tokens += r.emitted
        self.drafted += r.draft_length
        self.accepted += r.accepted
        self.seconds += r.total_seconds
        self.draft_seconds += r.draft_seconds
        self.verify_seconds += r.verify_seconds
        self.sample_seconds += r.total_seconds - r.draft_seconds - r.verify_seconds
        self.recent.append(r.emitted)
        if r.draft_length:
            self.lengths[r.accepted] += 1
        if self._plain_seconds is not None:
            if self.rounds % _BASELINE_EVERY == 1:
                self._baseline = self._plain_seconds(r.depth)
            self._pairs.append((r.emitted * self._baseline, r.total_seconds))

    def _add_tally(self, tally: Tally) -> None:
        usage = tally.usage
        self.tokens, self.rounds = usage.completion_tokens, usage.target_calls
        self.drafted, self.accepted = usage.drafted_tokens, usage.accepted_tokens
        self.seconds = tally.seconds or 0.0
        self.unknown, self.note = usage.unknown, tally.note

    @property
    def tokens_per_second(self) -> float | None:
        """None where nothing was measured."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None

    @property
    def tokens_per_call(self) -> float | None:
        """Mean tokens per target call (tok/call); None where no calls were counted."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def speedup(self) -> Speedup | None:
        """None until eight rounds have been measured or where there is no baseline.

        A ratio of sums; its variance by the delta method over rounds (Cochran 1977,
        chapter 6), with the baseline's own error added.
        """
        n = len(self._pairs)
        if n < 8 or not self.drafted:
            return None
        ratio = sum(plain for plain, _ in self._pairs) / self.seconds
        residual = sum((plain - ratio * taken) ** 2 for plain, taken in self._pairs)
        variance = residual * n / (n - 1) / self.seconds**2 + (ratio * self._plain_spread()) ** 2
        half = 1.96 * variance**0.5
        return Speedup(ratio, max(0.0, ratio - half), ratio + half)
