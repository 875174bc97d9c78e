"""What is refused, and how: one OpenAI-shaped error each, before any header is sent."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

USER = [{"role": "user", "content": "Hi"}]
DEEP = json.loads("[" * 80 + "]" * 80)

BAD = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "boss", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": USER * 5000}, "messages"),
    ({"messages": USER, "temperature": 2.5}, "temperature"),
    ({"messages": USER, "temperature": "hot"}, "temperature"),
    ({"messages": USER, "temperature": -1}, "temperature"),
    ({"messages": USER, "top_p": 1.1}, "top_p"),
    ({"messages": USER, "n": 0}, "n"),
    ({"messages": USER, "n": 17}, "n"),
    ({"messages": USER, "n": True}, "n"),
    ({"messages": USER, "max_tokens": -1}, "max_tokens"),
    ({"messages": USER, "max_tokens": 1.5}, "max_tokens"),
    ({"messages": USER, "seed": 10**30}, "seed"),
    ({"messages": USER, "presence_penalty": 3}, "presence_penalty"),
    ({"messages": USER, "stop": ["x"] * 17}, "stop"),
    ({"messages": USER, "top_logprobs": 2}, None),
    ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"messages": USER, "logit_bias": {"49152": 1}}, "logit_bias"),
    ({"messages": USER, "logit_bias": {"-1": 1}}, "logit_bias"),
    ({"messages": USER, "logit_bias": {"9" * 400: 1}}, "logit_bias"),
    ({"messages": USER, "logit_bias": {"1": 101}}, "logit_bias"),
    ({"messages": USER, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"messages": USER, "response_format": {"type": "xml"}}, "response_format.type"),
    ({"messages": USER, "response_format": {"type": "json_schema"}}, "response_format"),
    ({"messages": USER, "grammar": "root ::= nothing"}, "response_format"),
    ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
    ({"messages": USER, "tools": [{"type": "function", "function": {"name": "a b"}}]}, None),
    ({"messages": USER, "specchat": {"draft_length": 99}}, "draft_length"),
    ({"messages": USER, "specchat": {"rule": "guess"}}, "specchat.rule"),
    ({"messages": USER, "metadata": DEEP}, None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("stream", [False, True])
def test_bad_chats_are_refused(endpoint: Any, body: Any, param: str | None, stream: bool) -> None:
    response = endpoint.http.post("/v1/chat/completions", json={**body, "stream": stream})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] == param


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


@pytest.mark.parametrize(
    "value",
    [
        {"type": "nothing"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"anyOf": [{"enum": list(range(9000))}] * 3},
        {"type": "string", "pattern": "^(((((a{0,900}){0,900}){0,900})))$"},
        {"type": "string", "pattern": "^(a{0,900}){0,900}$"},
    ],
    ids=range(8),
)
def test_bad_schemas_are_refused(endpoint: Any, value: Any) -> None:
    response = endpoint.chat(response_format=schema(value))
    assert response.status_code == 400, response.text


def test_media_is_never_fetched(endpoint: Any) -> None:
    for part in (
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
    ):
        body = {"messages": [{"role": "user", "content": [part]}]}
        response = endpoint.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "unsupported_content"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        b'{"temperature": -Infinity}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
    ids=range(12),
)
def test_what_is_no_json_is_refused(endpoint: Any, raw: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = endpoint.http.post("/v1/chat/completions", content=raw, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt_is_a_400(endpoint: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        endpoint.openai().chat.completions.create(
            model="any", messages=[{"role": "user", "content": "sea " * 600}], stream=stream
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


def test_what_is_not_there(endpoint: Any) -> None:
    assert endpoint.http.get("/v2").status_code == 404
    assert endpoint.http.get("/v1/responses").status_code == 405
    assert endpoint.http.get("/v1/chat/completions/x").json()["error"]["message"]
    embeddings = endpoint.http.post("/v1/embeddings", json={"input": "x", "model": "x"})
    assert embeddings.status_code == 400
    assert embeddings.json()["error"]["code"] == "not_supported"


def test_the_models(endpoint: Any) -> None:
    client = endpoint.openai()
    assert [model.id for model in client.models.list()] == ["smol"]
    assert client.models.retrieve("../../etc/passwd").id == "smol"


def test_health_metrics_and_description(endpoint: Any) -> None:
    assert endpoint.http.get("/health").json()["status"] == "ok"
    before = metric(endpoint, "llamacpp:tokens_predicted_total")
    endpoint.answer(max_tokens=7)
    assert metric(endpoint, "llamacpp:tokens_predicted_total") == before + 7
    assert metric(endpoint, "llamacpp:requests_processing") == 0
    document = endpoint.http.get("/openapi.json").json()
    assert "/v1/chat/completions" in document["paths"]
    assert "<script" not in endpoint.http.get("/docs").text


def metric(endpoint: Any, name: str) -> float:
    lines = endpoint.http.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))
