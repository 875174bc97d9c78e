"""Chat completions, as clients see them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

QUESTION = "Name three colours and say what each reminds you of."


def test_the_openai_client_gets_an_answer(endpoint: Any) -> None:
    answer = endpoint.openai().chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Say hi."}], max_tokens=5
    )
    assert answer.object == "chat.completion"
    assert answer.model == "smol"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_the_openai_client_streams_the_same_answer(endpoint: Any) -> None:
    whole = endpoint.answer(QUESTION)["choices"][0]["message"]["content"]
    stream = endpoint.openai().chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": QUESTION}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 16


def test_the_shape_of_a_stream(endpoint: Any) -> None:
    chunks = endpoint.chunks(QUESTION, n=2, max_tokens=4)
    assert len({(c["id"], c["created"], c["object"]) for c in chunks}) == 1
    for index in range(2):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert all("role" not in choice["delta"] for choice in mine[1:])
        assert [c["finish_reason"] for c in mine].count(None) == len(mine) - 1
        assert mine[-1]["finish_reason"] == "length"
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["timings"]["predicted_n"] == 8


def test_a_stop_string_ends_the_answer_and_is_left_out(endpoint: Any) -> None:
    text = endpoint.answer(QUESTION)["choices"][0]["message"]["content"]
    stop = text.split()[3]
    cut = endpoint.answer(QUESTION, stop=[stop, "never"])["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["message"]["content"] == text[: text.index(stop)]
    assert endpoint.answer(QUESTION, stop=stop)["choices"][0]["message"] == cut["message"]


def test_a_seed_repeats_an_answer_and_choices_differ(single: Any) -> None:
    def texts(**fields: Any) -> list[str]:
        answer = single.answer(QUESTION, temperature=1.5, top_p=1, **fields)
        return [choice["message"]["content"] for choice in answer["choices"]]

    one = texts(n=2, seed=7)
    assert one == texts(n=2, seed=7)
    assert one[0] != one[1]
    assert one[:1] == texts(seed=7)
    assert texts(seed=-9007199254740991) == texts(seed=-9007199254740991)


def test_n_counts_the_prompt_once(endpoint: Any) -> None:
    one, two = endpoint.answer(n=1, max_tokens=3), endpoint.answer(n=2, max_tokens=3)
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert two["usage"]["completion_tokens"] == 6


def test_logprobs_are_the_models_own(endpoint: Any) -> None:
    answer = endpoint.answer(QUESTION, logprobs=True, top_logprobs=3, max_tokens=5)
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(e["token"] for e in content) == answer["choices"][0]["message"]["content"]
    for entry in content:
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert tops == sorted(tops, reverse=True)
        assert entry["logprob"] == tops[0]  # greedy
        assert sum(math.exp(t) for t in tops) <= 1.0
        assert bytes(entry["bytes"]).decode() == entry["token"]
    without = endpoint.answer(QUESTION, logprobs=True, max_tokens=5)["choices"][0]["logprobs"]
    assert [e["top_logprobs"] for e in without["content"]] == [[]] * 5
    assert endpoint.answer(QUESTION, max_tokens=2)["choices"][0]["logprobs"] is None


def test_logprobs_do_not_depend_on_speculation(single: Any) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 16}
    plain = single.answer(QUESTION, **fields)["choices"][0]
    drafted = single.answer(
        QUESTION,
        prediction={"type": "content", "content": plain["message"]["content"]},
        specchat={"draft_length": 4},
        **fields,
    )
    assert drafted["timings"]["draft_n_accepted"] > 4
    pairs = zip(
        plain["logprobs"]["content"],
        drafted["choices"][0]["logprobs"]["content"],
        strict=True,
    )
    for one, other in pairs:
        assert one["token"] == other["token"]
        assert abs(one["logprob"] - other["logprob"]) < 0.05


def test_logit_bias_by_id_and_by_text(endpoint: Any) -> None:
    first = endpoint.answer(max_tokens=1, logprobs=True)["choices"][0]["logprobs"]["content"][0]
    token = endpoint.service.engine.target.tokenizer.tokenize(first["token"])[0]
    for key in (str(token), first["token"]):
        other = endpoint.answer(max_tokens=1, logit_bias={key: -100})["choices"][0]["message"]
        assert other["content"] != first["token"]
    forced = endpoint.answer(max_tokens=3, logit_bias={str(token): 100})["choices"][0]["message"]
    assert forced["content"] == first["token"] * 3


def test_penalties_change_the_answer(endpoint: Any) -> None:
    text = "Repeat the word sea as often as you can: sea sea sea sea sea"
    plain = endpoint.answer(text, max_tokens=24)["choices"][0]["message"]["content"]
    penalised = endpoint.answer(text, max_tokens=24, frequency_penalty=2, presence_penalty=2)
    assert penalised["choices"][0]["message"]["content"] != plain


def test_zero_tokens_are_an_answer(endpoint: Any) -> None:
    answer = endpoint.answer(max_tokens=0)
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert endpoint.answer(max_tokens=9, max_completion_tokens=2)["usage"]["completion_tokens"] == 2


def test_null_is_absent_and_the_unknown_is_ignored(endpoint: Any) -> None:
    fields = {"temperature": None, "stop": None, "n": None, "tools": None, "what": {"is": "this"}}
    assert endpoint.answer(**fields)["choices"] == endpoint.answer()["choices"]


def test_parts_and_developers(endpoint: Any) -> None:
    def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"messages": messages, "max_tokens": 4}
        return endpoint.http.post("/v1/chat/completions", json=body).json()

    whole = ask([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi you"}])
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
    other = ask([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}])
    assert whole["choices"] == other["choices"]


def test_a_last_assistant_message_is_continued(endpoint: Any) -> None:
    messages = [
        {"role": "user", "content": "Count to ten."},
        {"role": "assistant", "content": "1, 2, 3, 4,"},
    ]
    body = {"messages": messages, "max_tokens": 6}
    continued = endpoint.http.post("/v1/chat/completions", json=body).json()
    assert continued["choices"][0]["message"]["content"].lstrip().startswith("5")
    body["continue_final_message"] = False
    answered = endpoint.http.post("/v1/chat/completions", json=body).json()
    assert answered["usage"]["prompt_tokens"] > continued["usage"]["prompt_tokens"]


def test_json_object_and_schema(endpoint: Any) -> None:
    loose = endpoint.answer("A person as JSON.", response_format={"type": "json_object"},
                            max_tokens=100)  # fmt: skip
    if loose["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(loose["choices"][0]["message"]["content"]), dict)
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}, "tall": {"type": "boolean"}},
        "required": ["age", "tall"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": schema}}
    strict = endpoint.answer("A person as JSON.", response_format=wanted, max_tokens=100)
    person = json.loads(strict["choices"][0]["message"]["content"])
    assert sorted(person) == ["age", "tall"]
    assert isinstance(person["age"], int)
    assert isinstance(person["tall"], bool)


def test_the_same_prompt_is_found_in_the_cache(endpoint: Any) -> None:
    text = "Which language is spoken in Brazil, and why?"
    endpoint.answer(text)
    usage = endpoint.answer(text)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_figures_of_speculation_on_request(single: Any) -> None:
    text = single.answer(QUESTION)["choices"][0]["message"]["content"]
    prediction = {"type": "content", "content": text}
    asked = {"tokens": True, "draft_length": 4}
    answer = single.answer(QUESTION, prediction=prediction, specchat=asked)
    told = answer["choices"][0]["specchat"]
    assert "".join(token["text"] for token in told["tokens"]) == text
    assert {"accepted", "bonus"} <= {token["kind"] for token in told["tokens"]}
    assert sum(r["accepted"] for r in told["rounds"]) == answer["timings"]["draft_n_accepted"]
    chunks = single.chunks(QUESTION, prediction=prediction, specchat=asked)
    figures = [c["choices"][0]["specchat"] for c in chunks if "specchat" in c["choices"][0]]
    assert [t for f in figures for t in f.get("tokens", ())] == told["tokens"]
    assert [f["round"]["accepted"] for f in figures if "round" in f] == [
        r["accepted"] for r in told["rounds"]
    ]
    assert "specchat" not in single.answer()["choices"][0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_under_match_drafting_changes_nothing(single: Any, seed: int) -> None:
    """The same tokens at temperature 0.2 with a seed, with and without a draft."""
    fields = {"temperature": 0.2, "seed": seed, "max_tokens": 40}
    plain = single.answer(QUESTION, specchat={"rule": "match", "draft_length": 0}, **fields)
    text = plain["choices"][0]["message"]["content"]
    drafted = single.answer(
        QUESTION,
        specchat={"rule": "match", "draft_length": 5},
        prediction={"type": "content", "content": text.replace("the", "a", 1)},
        **fields,
    )
    assert drafted["timings"]["draft_n_accepted"] > 0
    assert drafted["choices"][0]["message"]["content"] == text


def test_a_prediction_saves_calls_and_is_accounted_for(single: Any) -> None:
    text = single.answer(QUESTION, max_tokens=60)["choices"][0]["message"]["content"]
    words = text.split(" ")
    edited = " ".join([*words[:8], "unexpected", *words[9:]])
    answer = single.answer(
        QUESTION,
        max_tokens=60,
        prediction={"type": "content", "content": edited},
        specchat={"draft_length": 8, "tokens": True},
    )
    assert answer["choices"][0]["message"]["content"] == text
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 40
    assert 0 < details["rejected_prediction_tokens"] < 20
    assert len(answer["choices"][0]["specchat"]["rounds"]) < 20
    assert answer["timings"]["draft_n"] == sum(
        details[f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected")
    )
