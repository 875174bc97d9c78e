"""Answers in the harmony format, told apart while they stream."""

from __future__ import annotations

from typing import Any

import pytest
from test_tools import parse

from specchat.server.harmony import HarmonyParser

THOUGHT = "<|channel|>analysis<|message|>2 < 3, <|end they say.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Yes: <|x|>.<|return|>"
CALL = (
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": {"b": "<|e"}}<|call|>'
)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (THOUGHT + FINAL, "2 < 3, <|end they say.", "Yes: <|x|>.", []),
        (FINAL.removesuffix("<|return|>"), "", "Yes: <|x|>.", []),
        (THOUGHT + CALL, "2 < 3, <|end they say.", "", [("f", {"a": {"b": "<|e"}})]),
        (
            THOUGHT + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALL,
            "2 < 3, <|end they say.",
            "I look.",
            [("f", {"a": {"b": "<|e"}})],
        ),
        (
            ' to=functions.g<|channel|>commentary json<|message|>{"x": 1}<|call|>',
            "",
            "",
            [("g", {"x": 1})],
        ),
        (THOUGHT * 2 + FINAL, "2 < 3, <|end they say." * 2, "Yes: <|x|>.", []),
        (THOUGHT + "<|channel|>fi", "2 < 3, <|end they say.", "", []),  # cut short in a header
        ('{"a": 1}', "", '{"a": 1}', []),  # what a grammar makes it write
        ("to=", "", "to=", []),
        ("assistants help", "", "assistants help", []),
        (THOUGHT.replace("<|end|>", "") + FINAL, "2 < 3, <|end they say.", "Yes: <|x|>.", []),
    ],
)
def test_messages_are_told_apart(
    text: str, reasoning: str, content: str, calls: list[Any], size: int
) -> None:
    parser = HarmonyParser()
    whole = parse(parser, text, size)
    assert (whole["reasoning"], whole["content"], whole["calls"]) == (reasoning, content, calls)
    assert parser.calls == len(calls)
