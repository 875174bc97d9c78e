"""What a seed repeats, with the real model: see "Seeds" in docs/endpoint.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

QUESTION = "Tell me about the sea."
# Only top-k is on, and every candidate is reported: an answer tells what it was drawn from.
OPEN = {"temperature": 1, "top_k": 20, "top_p": 1, "min_p": 0, "max_tokens": 24}
TOLD = {**OPEN, "logprobs": True, "top_logprobs": 20}
NEAR = 0.02  # of probability: how far last bits may move the edge between two candidates


def tokens_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return answer["choices"][0]["logprobs"]["content"]


def luck(seed: int, count: int) -> list[float]:
    """The uniform numbers that a seed stands for, one for each token."""
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(2)[0])
    return [rng.random() for _ in range(count)]


def off_by(entry: dict[str, Any], u: float) -> float:
    """How far `u` lies outside of the token's share of the cumulative distribution."""
    shares = [math.exp(top["logprob"]) for top in entry["top_logprobs"]]
    at = [top["bytes"] for top in entry["top_logprobs"]].index(entry["bytes"])
    low, high = sum(shares[:at]) / sum(shares), sum(shares[: at + 1]) / sum(shares)
    return max(low - u, u - high, 0.0)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 2, 6])
def test_under_match_a_token_is_the_seeds_quantile_whatever_the_draft(
    drafted: Any, seed: int, length: int
) -> None:
    asked = {"rule": "match", "draft_length": length, "drafter": "draft"}
    answer = drafted.answer(QUESTION, seed=seed, specchat=asked, **TOLD)
    assert (answer["timings"]["draft_n_accepted"] > 0) == (length > 0)
    entries = tokens_of(answer)
    for entry, u in zip(entries, luck(seed, len(entries)), strict=True):
        assert off_by(entry, u) < 1e-4, entry["token"]
    others = luck(seed + 100, len(entries))  # the luck of another seed would not do
    assert any(off_by(e, u) > NEAR for e, u in zip(entries, others, strict=True))


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_under_match_answers_part_only_at_a_near_tie(drafted: Any, seed: int) -> None:
    def ask(length: int) -> list[dict[str, Any]]:
        asked = {"rule": "match", "draft_length": length, "drafter": "draft"}
        return tokens_of(drafted.answer(QUESTION, seed=seed, specchat=asked, **TOLD))

    plain, other = ask(0), ask(4)
    for one, two, u in zip(plain, other, luck(seed, 24), strict=False):
        if one["bytes"] != two["bytes"]:
            assert off_by({**one, "bytes": two["bytes"]}, u) < NEAR
            break


@pytest.mark.parametrize(
    "asked",
    [
        {"rule": "exact", "draft_length": 3, "drafter": "draft"},
        {"rule": "exact", "draft_length": 0},
        {"rule": "match", "draft_length": 3, "drafter": "draft"},
    ],
    ids=["exact", "plain", "match"],
)
def test_the_same_request_to_an_idle_server_is_repeated(drafted: Any, asked: Any) -> None:
    """At a fixed draft length, once the prompt is in the cache: the same calls, the same bits."""
    texts = []
    for _ in range(3):
        answer = drafted.answer(QUESTION, seed=9, specchat=asked, **OPEN)
        texts.append(answer["choices"][0]["message"]["content"])
    assert texts[1] == texts[2]


def test_choices_have_the_seeds_that_follow(single: Any) -> None:
    def texts(**fields: Any) -> list[str]:
        answer = single.answer(QUESTION, specchat={"rule": "match"}, **OPEN, **fields)
        return [choice["message"]["content"] for choice in answer["choices"]]

    texts(seed=5)  # the prompt into the cache
    assert texts(seed=5, n=3) == [*texts(seed=5), *texts(seed=6), *texts(seed=7)]
