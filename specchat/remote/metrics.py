"""vLLM's counters of speculative decoding, read before and after an answer.

They count for the whole server. Whether this answer was alone shows in the tokens it
generated meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

SERVER_WIDE = "counted over the whole server"

# vLLM's names (https://docs.vllm.ai/en/latest/design/metrics.html); counters, so "_total".
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_GENERATED = "vllm:generation_tokens_total"

Counters = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Drafted:
    """Counts under the names of `events.Usage`, and whose they are ("": the answer's)."""

    counts: Mapping[str, int]
    note: str = ""


def read(text: str, model: str) -> Counters:
    """The counters in a /metrics page, for one model; empty where it does not draft.

    Raises ValueError for what is no such page.
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            of_model = sample.labels.get("model_name", model) == model
            if sample.name in (_DRAFTED, _ACCEPTED, _GENERATED) and of_model:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found if _DRAFTED in found and _ACCEPTED in found else {}


def between(before: Counters, after: Counters, tokens: int | None) -> Drafted | None:
    """What was drafted between two readings, while an answer of `tokens` tokens came; None
    where it cannot be said.
    """
    if not before or not after:
        return None
    drafted, accepted = (round(after[name] - before[name]) for name in (_DRAFTED, _ACCEPTED))
    if drafted < 0 or not 0 <= accepted <= drafted:  # the server was started anew
        return None
    counts = {"drafted_tokens": drafted, "accepted_tokens": accepted}
    if _GENERATED not in before or _GENERATED not in after or tokens is None:
        return Drafted(counts, SERVER_WIDE)
    if round(after[_GENERATED] - before[_GENERATED]) != tokens:
        return Drafted(counts, SERVER_WIDE)
    # Each call of the target brings one token besides those it accepts.
    return Drafted(counts | {"target_calls": max(0, tokens - accepted)})
