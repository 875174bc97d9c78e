"""What the engine tells its clients: immutable values, no behaviour beyond sums.

A generation is a stream of `Prefill` events, then per round its `Token`s followed by one
`Round`, and finally one `Finish`. A remote server that does not report rounds gives a `Tally`
now and then instead, and what it does not tell is marked as unknown, never made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Where a token came from."""

    ACCEPTED = "accepted"  # proposed by the draft, kept by the target
    RESAMPLED = "resampled"  # drawn from the target after it rejected a draft token
    BONUS = "bonus"  # drawn from the target after it accepted a whole draft
    PLAIN = "plain"  # drawn from the target in a round without a draft
    UNKNOWN = "unknown"  # a remote server does not say


# Order for colouring a character made of several tokens: the least certain one wins.
WORST_FIRST = (Kind.UNKNOWN, Kind.RESAMPLED, Kind.PLAIN, Kind.BONUS, Kind.ACCEPTED)


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-generation token, stop string, or completed grammar
    LENGTH = "length"  # max_tokens or the context is full
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One candidate at a position.

    `logprob` is the natural-log probability under the raw model (temperature 1, before any
    truncation). `id` is below 0 where a remote server does not tell it; equal texts have
    equal ids within an answer.
    """

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """A draft token the target refused, with its probabilities under target and draft."""

    id: int
    text: str
    p: float
    q: float


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token.

    `text` is what became readable with this token: it may be empty (part of a character)
    and never contains a stop string. `text_kind` is the kind to colour `text` with (the
    worst of the tokens that share its first character). `p` and `q` are the probabilities
    of this token under target and draft after the sampler chain (`q` is None where nothing
    was drafted); `acceptance` is the probability with which a draft token in this position
    would be kept, None where there was no draft token. `rejected` is the draft token that
    stood here. `logprob` and `alternatives` are filled when log-probabilities were asked
    for: raw model, temperature 1, best first.

    From a remote server that does not report tokens it is a piece of text, of one token or
    several: `id` is below 0, `round` -1, the kinds are unknown and `p` is None.
    """

    id: int
    text: str
    kind: Kind
    text_kind: Kind
    round: int
    p: float | None
    q: float | None = None
    acceptance: float | None = None
    rejected: Rejected | None = None
    logprob: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    draft_alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompt evaluation progress, in tokens. `cached` tokens were reused, not evaluated."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Round:
    """One draft/verify cycle: exactly one target call.

    `draft_length` tokens were proposed by `drafter` ("" where none), `accepted` of them
    kept, `emitted` tokens came out (accepted plus one, less where the answer ended).
    `depth` is the number of tokens in the target's KV cache before the call. Times are
    seconds. `draft_tokens` are the proposed ids with texts; `rejected` those refused or
    never judged (after the first refusal), `replacement` the token that took the first
    refused one's place. `reason` is the controller's explanation of the draft length.
    """

    index: int
    drafter: str
    draft_length: int
    accepted: int
    emitted: int
    depth: int
    draft_seconds: float
    verify_seconds: float
    sample_seconds: float
    total_seconds: float
    draft_tokens: tuple[tuple[int, str], ...] = ()
    rejected: tuple[tuple[int, str], ...] = ()
    replacement: tuple[int, str] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one generation.

    `cached_tokens` of `prompt_tokens` were already in the target's KV cache
    (`draft_cached_tokens` in the draft's). `unknown` names the counts that a remote server
    did not tell; they are 0 here.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    draft_cached_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    target_calls: int = 0
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums so far, as a remote server counts them, where it does not report rounds.

    `seconds` of generating, None where unknown. `note` says whose counts these are, if not
    this answer's alone.
    """

    usage: Usage
    seconds: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation. Seconds are wall time; `stop` is the stop string that hit."""

    reason: FinishReason
    usage: Usage
    prefill_seconds: float
    generate_seconds: float
    stop: str | None = None


Event = Prefill | Token | Round | Tally | Finish
