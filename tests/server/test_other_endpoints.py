"""Plain completions and responses."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response


def test_completions_of_texts_and_tokens(endpoint: Any) -> None:
    client = endpoint.openai()
    text = client.completions.create(model="any", prompt="The capital of France is", max_tokens=4)
    assert "Paris" in text.choices[0].text
    ids = endpoint.service.engine.target.tokenizer.tokenize("The capital of France is")
    for prompt in (ids, [ids], [ids, "x"][:1], ["The capital of France is"]):
        other = client.completions.create(model="any", prompt=prompt, max_tokens=4)
        assert other.choices[0].text == text.choices[0].text
    both = client.completions.create(model="any", prompt=["One two", "The sea"], n=2, max_tokens=3)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.usage.completion_tokens == 12


def test_completions_echo_and_logprobs(endpoint: Any) -> None:
    def ask(**fields: Any) -> Any:
        body = {"prompt": "One, two,", "max_tokens": 5, **fields}
        return endpoint.http.post("/v1/completions", json=body).json()["choices"][0]

    plain = ask()
    assert ask(echo=True)["text"] == "One, two," + plain["text"]
    logprobs = ask(logprobs=2)["logprobs"]
    assert "".join(logprobs["tokens"]) == plain["text"]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2] * 5
    assert all(logprob <= 0 for logprob in logprobs["token_logprobs"])
    assert logprobs["text_offset"][0] == 0
    assert plain["finish_reason"] == "length"


def test_completions_stream_what_they_answer(endpoint: Any) -> None:
    body = {"prompt": "One, two,", "max_tokens": 5, "stream_options": {"include_usage": True}}
    whole = endpoint.http.post("/v1/completions", json=body).json()
    *chunks, done = endpoint.events("/v1/completions", body)
    assert done == "[DONE]"
    parts = [c["choices"][0] for c in chunks if c["choices"]]
    assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
    assert parts[-1]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [49152]},
        {"prompt": [-1]},
        {"prompt": [2**31]},
        {"prompt": [1, "x"]},
        {"prompt": {"x": 1}},
        {"prompt": "x", "best_of": 3},
        {"prompt": "x", "echo": True, "logprobs": 1},
        {"prompt": ["x"] * 9, "n": 2},
        {"prompt": "sea " * 600},
    ],
    ids=range(12),
)
def test_bad_completions(endpoint: Any, fields: dict[str, Any]) -> None:
    response = endpoint.http.post("/v1/completions", json={"max_tokens": 1, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_response_and_its_stream(endpoint: Any) -> None:
    client = endpoint.openai()
    fields = {
        "model": "any",
        "instructions": "Be brief.",
        "input": "Name a colour.",
        "max_output_tokens": 8,
    }
    whole = client.responses.create(**fields)
    assert whole.status in ("completed", "incomplete")
    assert whole.output_text
    assert whole.usage.input_tokens > 5
    events = list(client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text


def test_a_response_has_every_field_of_the_object(endpoint: Any) -> None:
    body = {"input": "Hi", "max_output_tokens": 40, "temperature": 0, "text": {"verbosity": "low"}}
    response = endpoint.http.post("/v1/responses", json=body).json()
    wanted = {name for name, field in Response.model_fields.items() if field.is_required()}
    assert wanted - set(response) == set()
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert (response["truncation"], response["background"]) == ("disabled", False)
    done = response["status"] == "completed"
    assert (response["completed_at"] is not None) == done
    if done:
        assert response["completed_at"] >= response["created_at"]


def test_a_conversation_as_input(endpoint: Any) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is the weather?"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "Rain"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "It rains."}]},
        {"role": "user", "content": "Thanks!"},
    ]  # fmt: skip
    response = endpoint.openai().responses.create(model="any", input=items, max_output_tokens=4)
    assert response.output_text


def test_a_required_function_in_responses(endpoint: Any) -> None:
    tool = {
        "type": "function",
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": ["CET", "UTC"]}},
            "required": ["zone"],
            "additionalProperties": False,
        },
        "strict": True,
    }
    fields = {"model": "any", "input": "Time?", "tools": [tool], "tool_choice": "required"}
    response = endpoint.openai().responses.create(**fields, max_output_tokens=60)
    (call,) = response.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["zone"] in ("CET", "UTC")
    events = list(endpoint.openai().responses.create(**fields, max_output_tokens=60, stream=True))
    done = next(e for e in events if e.type == "response.function_call_arguments.done")
    assert json.loads(done.arguments) == json.loads(call.arguments)


def test_json_in_responses(endpoint: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    response = endpoint.openai().responses.create(
        model="any",
        input="A number as JSON.",
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}},
        max_output_tokens=40,
    )
    assert isinstance(json.loads(response.output_text)["n"], int)


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": []},
        {"temperature": 5},
        {"text": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
    ],
    ids=range(8),
)
def test_bad_responses(endpoint: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        endpoint.openai().responses.create(**{"model": "any", "input": "Hi", **fields})
