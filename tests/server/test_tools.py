"""Tool calls: told to models of several families, enforced, parsed while they stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specchat.server.call_formats import HERMES, LLAMA3, MISTRAL
from specchat.server.parsing import AnswerParser

THINK = ("<think>", "</think>")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"$ref": "#/$defs/zone"}},
            "required": ["zone"],
            "additionalProperties": False,
            "$defs": {"zone": {"enum": ["CET", "UTC"]}},
        },
    },
}
CALL = '{"name": "f", "arguments": {"a": "b}\\"", "c": [1, {"d": null}]}}'
ARGUMENTS = {"a": 'b}"', "c": [1, {"d": None}]}


def parse(parser: AnswerParser, text: str, size: int) -> dict[str, Any]:
    """Feed `text` in pieces and add the deltas up, checking their shape."""
    whole: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    deltas = []
    for start in range(0, len(text), size):
        deltas += parser.push(text[start : start + size])
    for delta in [*deltas, *parser.finish()]:
        whole["content"] += delta.get("content", "")
        whole["reasoning"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(whole["calls"]):
                whole["calls"].append([call["function"]["name"], ""])
                assert call["id"]
            else:
                assert set(call) == {"index", "function"}
            assert call["index"] == len(whole["calls"]) - 1
            whole["calls"][-1][1] += call["function"]["arguments"]
    whole["calls"] = [(name, json.loads(arguments)) for name, arguments in whole["calls"]]
    return whole


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("format", "text", "content", "calls"),
    [
        (HERMES, "Hello <b> <tool>", "Hello <b> <tool>", []),
        (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", [("f", ARGUMENTS)]),
        (
            HERMES,
            f"Well.\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{CALL}</tool_call>\n",
            "Well.\n",
            [("f", ARGUMENTS)] * 2,
        ),
        (HERMES, f"<tool_call>{CALL}", "", [("f", ARGUMENTS)]),
        (
            HERMES,
            '<tool_call>{"arguments": {"x": 1}, "name": "g"}</tool_call>',
            "",
            [("g", {"x": 1})],
        ),
        (
            HERMES,
            '<tool_call>{"name": "g", "arguments": "{\\"x\\": 1}"}</tool_call>',
            "",
            [("g", {"x": 1})],
        ),
        (HERMES, "<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", []),
        (MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", "", [("f", ARGUMENTS)] * 2),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1}', "", [("f", {"x": 1})]),
        (MISTRAL, "A [TOOL] is", "A [TOOL] is", []),
        (LLAMA3, '{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})]),
        (LLAMA3, '{"x": "name"}', '{"x": "name"}', []),
        (LLAMA3, '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", {})]),
        (
            LLAMA3,
            '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
            "",
            [("f", {}), ("g", {})],
        ),
        (LLAMA3, "Just text.", "Just text.", []),
    ],
)
def test_calls_are_found_in_the_text(
    format: Any, text: str, content: str, calls: list[Any], size: int
) -> None:
    whole = parse(AnswerParser(calls=format), text, size)
    assert whole["content"] == content
    assert whole["calls"] == calls


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_reasoning_is_told_apart(size: int) -> None:
    text = "<think>\nHm, 1 < 2.</think>\n\nYes."
    whole = parse(AnswerParser(THINK), text, size)
    assert (whole["reasoning"], whole["content"]) == ("Hm, 1 < 2.", "Yes.")
    whole = parse(AnswerParser(THINK, open=True), "Hm.</think>Yes.", size)
    assert (whole["reasoning"], whole["content"]) == ("Hm.", "Yes.")
    whole = parse(AnswerParser(THINK), "No <think> here", size)
    assert (whole["reasoning"], whole["content"]) == ("", "No <think> here")
    whole = parse(AnswerParser(THINK, open=True), "cut off", size)
    assert (whole["reasoning"], whole["content"]) == ("cut off", "")
    text = f"<think>t</think>\n<tool_call>{CALL}</tool_call>"
    whole = parse(AnswerParser(THINK, calls=HERMES), text, size)
    assert (whole["reasoning"], whole["content"]) == ("t", "")
    assert whole["calls"] == [("f", ARGUMENTS)]


def test_a_required_call_is_enforced(endpoint: Any) -> None:
    answer = endpoint.answer(
        "What is the weather in Paris?",
        tools=[WEATHER, CLOCK],
        tool_choice="required",
        max_tokens=60,
    )
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] in ("get_weather", "get_time")
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_a_named_call_streams_to_the_openai_client(endpoint: Any) -> None:
    stream = endpoint.openai().chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "What time is it?"}],
        tools=[WEATHER, CLOCK],
        tool_choice={"type": "function", "function": {"name": "get_time"}},
        max_tokens=60,
        temperature=1,
        stream=True,
    )
    calls = [c for chunk in stream for c in chunk.choices[0].delta.tool_calls or ()]
    assert calls[0].function.name == "get_time"
    arguments = json.loads("".join(call.function.arguments for call in calls))
    assert arguments["zone"] in ("CET", "UTC")


def test_tools_reach_the_model_unless_none_is_chosen(endpoint: Any) -> None:
    def count(**fields: Any) -> int:
        return endpoint.answer(max_tokens=1, **fields)["usage"]["prompt_tokens"]

    assert count(tools=[WEATHER]) > count() + 50
    assert count(tools=[WEATHER], tool_choice="none") == count()


def test_results_of_tools_go_back(endpoint: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Purple rain"},
    ]
    body = {"messages": messages, "tools": [WEATHER], "max_tokens": 4}
    response = endpoint.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


def test_a_choice_that_is_not_there(endpoint: Any) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    response = endpoint.chat(tools=[WEATHER], tool_choice=named)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"
    assert endpoint.chat(tools=[WEATHER, WEATHER]).status_code == 400
