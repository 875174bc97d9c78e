"""What llama.cpp's own server is tested for, asked of this one with a real draft model.

The contracts are those of its unit tests (completions, chat, speculation, slots, metrics, keys),
written anew for SmolLM2; other files here hold those that this server had tests for before.
"""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from specchat.server.security import Door

PROMPT = "The capital of France is"
QUESTION = "List three colours of the rainbow."
KEY = "a-long-enough-key-for-the-tests"


def complete(endpoint: Any, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
    response = endpoint.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["text"]


def speculate(length: int, rule: str = "exact") -> dict[str, Any]:
    return {"specchat": {"draft_length": length, "rule": rule}}


# -- speculation ---------------------------------------------------------------------------


def test_greedy_answers_are_the_same_with_and_without_a_draft(drafted: Any) -> None:
    plain = complete(drafted, max_tokens=24, **speculate(0))
    assert plain["timings"]["draft_n"] == 0
    for length in (1, 3, 7):
        answer = complete(drafted, max_tokens=24, **speculate(length))
        assert text_of(answer) == text_of(plain)
        assert answer["timings"]["draft_n_accepted"] > 0


@pytest.mark.parametrize("seed", [11, 12])
def test_match_answers_are_the_same_with_any_draft(drafted: Any, seed: int) -> None:
    """At temperature 0.2; `exact` promises the distribution, not the tokens."""
    fields = {"temperature": 0.2, "seed": seed, "max_tokens": 16}
    plain = complete(drafted, **fields, **speculate(0, "match"))
    for length in (2, 5):
        answer = complete(drafted, **fields, **speculate(length, "match"))
        assert answer["timings"]["draft_n_accepted"] > 0
        assert text_of(answer) == text_of(plain)


def test_a_fixed_length_repeats_an_exact_answer_by_its_seed(drafted: Any) -> None:
    fields = {"temperature": 1, "top_p": 1, "max_tokens": 16, "seed": 5}
    fields |= {"specchat": {"draft_length": 3, "rule": "exact", "drafter": "draft"}}
    complete(drafted, **fields)  # afterwards all but one token of the prompt is in the cache
    assert text_of(complete(drafted, **fields)) == text_of(complete(drafted, **fields))


def test_drafting_stays_within_the_context(drafted: Any) -> None:
    answer = complete(drafted, "Once upon a time " * 40, max_tokens=400, **speculate(7))
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    assert answer["usage"]["total_tokens"] <= 256
    answer = complete(
        drafted, "Once upon a time " * 40, max_tokens=400, logit_bias={"2": -100, "0": -100},
        **speculate(7),
    )  # fmt: skip
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] in (256, 257)  # the last token need not be evaluated


def test_many_requests_share_the_slots_while_drafting(drafted: Any) -> None:
    prompts = [f"{name} is" for name in ("Rome", "Bread", "The sea", "Music", "A horse", "Tea")]
    alone = [text_of(complete(drafted, prompt, **speculate(3))) for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        both = list(pool.map(lambda p: complete(drafted, p, **speculate(3)), prompts))
    assert all(answer["usage"]["completion_tokens"] for answer in both)
    # Near-ties may fall otherwise in a batch of another shape, most answers do not have one.
    assert sum(text_of(a) == b for a, b in zip(both, alone, strict=True)) >= 4
    assert drafted.service.load == (0, 0)


def test_hanging_up_while_drafting_frees_the_slot(drafted: Any) -> None:
    body = {"prompt": "Count: 1, 2, 3,", "max_tokens": 200, "stream": True, **speculate(4)}
    for _ in range(4):  # twice as many as there are slots
        with drafted.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
    deadline = time.monotonic() + 30
    while drafted.service.load != (0, 0):
        assert time.monotonic() < deadline, "a slot is stuck"
        time.sleep(0.02)
    assert complete(drafted, max_tokens=3)["usage"]["completion_tokens"] == 3


def test_logprobs_of_drafted_tokens_are_the_targets(drafted: Any) -> None:
    plain = complete(drafted, logprobs=2, **speculate(0))["choices"][0]["logprobs"]
    answer = complete(drafted, logprobs=2, **speculate(5))
    assert answer["timings"]["draft_n_accepted"] > 2
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == plain["tokens"]
    assert all(value < 0 for value in found["token_logprobs"])
    for one, other in zip(found["token_logprobs"], plain["token_logprobs"], strict=True):
        assert math.isclose(one, other, abs_tol=0.1)


# -- answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_adds_up_to_the_answer(single: Any, n: int) -> None:
    fields = {"n": n, "seed": 3, "temperature": 0.8, "logprobs": True, "top_logprobs": 2}
    single.answer(QUESTION, max_tokens=1)
    whole = single.answer(QUESTION, **fields)
    texts, logprobs, reasons = [""] * n, [[] for _ in range(n)], [[] for _ in range(n)]
    for chunk in single.chunks(QUESTION, **fields):
        for choice in chunk["choices"]:
            at = choice["index"]
            texts[at] += choice["delta"].get("content") or ""
            logprobs[at] += (choice["logprobs"] or {"content": []})["content"]
            reasons[at] += [choice["finish_reason"]] if choice["finish_reason"] else []
    for choice in whole["choices"]:
        at = choice["index"]
        assert texts[at] == choice["message"]["content"]
        assert [e["token"] for e in logprobs[at]] == [
            e["token"] for e in choice["logprobs"]["content"]
        ]
        assert reasons[at] == [choice["finish_reason"]]


def test_other_seeds_give_other_answers(single: Any) -> None:
    fields = {"temperature": 1.2, "top_p": 1, "max_tokens": 12}
    texts = {text_of(complete(single, seed=seed, **fields)) for seed in range(4)}
    assert len(texts) > 1


def test_token_ids_are_answered_like_their_text(single: Any) -> None:
    ids = single.service.engine.target.tokenizer.tokenize(PROMPT)
    by_text, by_ids = complete(single), complete(single, ids)
    assert text_of(by_text) == text_of(by_ids)
    assert by_text["usage"]["prompt_tokens"] == by_ids["usage"]["prompt_tokens"] == len(ids)
    several = complete(single, [ids, ids])
    assert [choice["text"] for choice in several["choices"]] == [text_of(by_text)] * 2


def test_a_token_can_be_banned(single: Any) -> None:
    text = text_of(complete(single))
    tokens = single.service.engine.target.tokenizer.tokenize(text)
    banned = text_of(complete(single, logit_bias={str(tokens[0]): -100}))
    assert banned
    assert single.service.engine.target.tokenizer.tokenize(banned)[0] != tokens[0]


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        ({"type": "json_object"}, dict),
        ({"type": "json_object", "schema": {"const": "42"}}, str),
        ({"type": "json_schema", "json_schema": {"schema": {"enum": [7, 8]}}}, int),
        ({"type": "json_schema", "json_schema": {
            "schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 2,
                       "maxItems": 2}}}, list),
    ],
)  # fmt: skip
def test_a_response_format_holds_while_drafting(drafted: Any, format: Any, kind: type) -> None:
    fields = {"response_format": format, "max_tokens": 120, "temperature": 0.8, "seed": 1}
    choice = drafted.answer("Answer in JSON.", **fields, **speculate(3))["choices"][0]
    text = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(text), kind)
    else:
        assert kind is dict  # the one without an end
        assert text.lstrip().startswith("{")


def test_a_grammar_holds_and_a_broken_one_is_refused(drafted: Any) -> None:
    answer = drafted.answer("Yes or no?", grammar='root ::= ("a" | "b")+ "c"', **speculate(3))
    assert set(answer["choices"][0]["message"]["content"]) <= set("abc")
    assert drafted.chat(grammar='root ::= "a').status_code == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_a_prompt_beyond_the_context_is_a_400_everywhere(
    drafted: Any, path: str, stream: bool
) -> None:
    text = "sea " * 400
    body = {
        "chat/completions": {"messages": [{"role": "user", "content": text}]},
        "completions": {"prompt": text},
        "responses": {"input": text},
    }[path]
    response = drafted.http.post(f"/v1/{path}", json={**body, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "256" in error["message"]
    assert complete(drafted, max_tokens=1)["usage"]["completion_tokens"] == 1


# -- cache, metrics, keys ------------------------------------------------------------------


def test_a_longer_conversation_finds_the_shorter_one_in_the_cache(single: Any) -> None:
    first = single.answer(QUESTION)
    reply = first["choices"][0]["message"]["content"]
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "Which one is the brightest?"},
    ]
    body = {"messages": messages, "max_tokens": 2}
    usage = single.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


NAMES = (
    "llamacpp:prompt_tokens_total",
    "llamacpp:prompt_seconds_total",
    "llamacpp:tokens_predicted_total",
    "llamacpp:tokens_predicted_seconds_total",
    "llamacpp:n_decode_total",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "specchat_drafted_tokens_total",
    "specchat_accepted_tokens_total",
    "specchat_cached_tokens_total",
)


def test_metrics_count_what_was_answered(drafted: Any) -> None:
    def read() -> dict[str, float]:
        response = drafted.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        lines = [line for line in response.text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    before = read()
    assert set(NAMES) <= set(before)
    answers = [complete(drafted, f"{n} is a number", **speculate(3)) for n in range(2)]
    after = read()

    def grown(name: str) -> float:
        return after[name] - before[name]

    def total(*path: str) -> int:
        found = 0
        for answer in answers:
            value: Any = answer
            for key in path:
                value = value[key]
            found += value
        return found

    cached = total("usage", "prompt_tokens_details", "cached_tokens")
    assert grown(NAMES[2]) == total("usage", "completion_tokens")
    assert grown(NAMES[0]) == total("usage", "prompt_tokens") - cached
    assert grown("specchat_cached_tokens_total") == cached
    assert grown("specchat_drafted_tokens_total") == total("timings", "draft_n")
    assert grown("specchat_accepted_tokens_total") == total("timings", "draft_n_accepted")
    assert all(math.isfinite(value) for answer in answers for value in answer["timings"].values())


def test_keys_guard_the_models_and_not_health(serve: Any) -> None:
    endpoint = serve(Door(key=KEY))
    assert endpoint.http.get("/health").status_code == 200
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        response = endpoint.http.post(path, json={"prompt": "x", "input": "x"})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    fields: Any = {"model": "any", "prompt": PROMPT, "max_tokens": 1}
    with pytest.raises(openai.AuthenticationError):
        endpoint.openai("wrong").completions.create(**fields)
    assert endpoint.openai(KEY).completions.create(**fields).choices[0].finish_reason == "length"
