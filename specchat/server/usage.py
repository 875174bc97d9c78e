"""Token counts and times of a request, in OpenAI's and llama-server's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specchat.engine.events import Finish
from specchat.server.answer import Answer


def finishes(answers: Sequence[Answer]) -> list[Finish]:
    return [answer.finish for answer in answers if answer.finish]


def usage(answers: Sequence[Answer], choices: int = 1) -> dict[str, Any]:
    """`choices` answers share each prompt, which counts once."""
    ends = finishes(answers)
    prompt = sum(end.usage.prompt_tokens for end in ends[::choices])
    completion = sum(end.usage.completion_tokens for end in ends)
    cached = sum(end.usage.cached_tokens for end in ends[::choices])
    accepted = sum(answer.predicted_accepted for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": prompt - cached,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(a.predicted for a in answers) - accepted,
            "reasoning_tokens": sum(answer.reasoning_tokens for answer in answers),
            "audio_tokens": 0,
        },
    }


def timings(answers: Sequence[Answer]) -> dict[str, Any]:
    """llama-server's names; milliseconds. Sums over all answers."""
    ends = finishes(answers)
    cached = sum(end.usage.cached_tokens for end in ends)
    prompt = sum(end.usage.prompt_tokens for end in ends) - cached
    predicted = sum(end.usage.completion_tokens for end in ends)
    prompt_ms = 1000 * sum(end.prefill_seconds for end in ends)
    predicted_ms = 1000 * sum(end.generate_seconds for end in ends)
    return {
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, prompt),
        "prompt_per_second": _ratio(1000 * prompt, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, predicted),
        "predicted_per_second": _ratio(1000 * predicted, predicted_ms),
        "draft_n": sum(end.usage.drafted_tokens for end in ends),
        "draft_n_accepted": sum(end.usage.accepted_tokens for end in ends),
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
