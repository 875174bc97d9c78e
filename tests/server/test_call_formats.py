"""The way each family of chat templates writes calls, parsed back while it streams.

`SPECCHAT_TEMPLATES` may name a folder of chat templates, such as
`vendor/llama.cpp/models/templates`
in llama-cpp-python's source: then what each renders of a message with calls is parsed back.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_tools import THINK, parse

from specchat.engine.engine import Engine
from specchat.engine.llama import ModelOptions
from specchat.engine.messages import Message
from specchat.engine.service import Service
from specchat.engine.template import ChatTemplate
from specchat.server import call_formats as formats
from specchat.server.call_formats import of_template
from specchat.server.harmony import HarmonyParser
from specchat.server.parsing import AnswerParser
from specchat.server.schemas import Tool
from specchat.server.tools import call_format, described

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "zip": {"type": "string"},
    "near": {"type": "array"},
}
FIRST = {"city": 'Say "hi"\n<b> {x}', "days": 2, "zip": "0123", "near": ["a", {"b": None}]}
SECOND = {"zone": "UTC"}
BOTH = [("get_weather", FIRST), ("get_time", SECOND)]
TOOLS = [
    Tool.model_validate(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Tells",
                "parameters": {"type": "object", "properties": properties},
            },
        }
    )
    for name, properties in (
        ("get_weather", PROPERTIES),
        ("get_time", {"zone": {"type": "string"}}),
    )
]
SCHEMAS = {tool.function.name: tool.function.parameters for tool in TOOLS}

TEXTS = [
    (formats.DEEPSEEK,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    (formats.DEEPSEEK,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    (formats.KIMI,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>"),
    (formats.SOLAR,
     "<|tool_calls|><|tool_call:begin|>x1<|tool_call:name|>f<|tool_call:args|>{\"a\": 1}"
     "<|tool_call:end|><|tool_call:begin|>x2<|tool_call:name|>g<|tool_call:args|>{}"
     "<|tool_call:end|>"),
    (formats.FUNCTIONARY, '<function=f>{"a": 1}</function><function=g>{}</function>'),
    (formats.COMMAND_R,
     '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}},\n'
     ' {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>'),
    (formats.PHI4,
     '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
     "<|/tool_call|>"),
    (formats.GRANITE,
     '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'),
    (formats.MISTRAL, '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}'),
    (formats.TOOL_CALLS,
     '<tool_calls>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": {}}\n'
     "</tool_calls>"),
    (formats.QWEN_CODER,
     "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=g>\n</function>\n</tool_call>"),
    (formats.GLM,
     "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
     "<tool_call>g\n</tool_call>"),
    (formats.MINIMAX,
     '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
     '<invoke name="g">\n</invoke>\n</minimax:tool_call>'),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("format", "text"), TEXTS, ids=[f"{i}-{t[0].name}" for i, t in enumerate(TEXTS)]
)
def test_every_family_is_parsed(format: Any, text: str, size: int) -> None:
    whole = parse(AnswerParser(calls=format), f"Well.{text}", size)
    assert whole["content"] == "Well."
    assert whole["calls"] == [("f", {"a": 1}), ("g", {})]


@pytest.mark.parametrize("format", {t[0].name: t[0] for t in TEXTS}.values(), ids=lambda f: f.name)
def test_what_is_no_call_is_content(format: Any) -> None:
    text = f"A {format.start}no call here{format.end or ''}"
    whole = parse(AnswerParser(calls=format), text, 5)
    assert (whole["content"], whole["calls"]) == (text, [])


@pytest.mark.parametrize("format", {t[0].name: t[0] for t in TEXTS}.values(), ids=lambda f: f.name)
def test_an_enforced_call_is_json_within_the_marks(format: Any) -> None:
    call = '{"name": "f", "arguments": {"a": "x"}}'
    text = f"[{call}]" if format.array else call
    whole = parse(AnswerParser(calls=format, forced=True), text, 4)
    assert (whole["content"], whole["calls"]) == ("", [("f", {"a": "x"})])


def test_arguments_in_xml_are_typed_by_the_tool() -> None:
    text = (
        "<tool_call>\n<function=get_weather>\n<parameter=zip>\n0123\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n<parameter=city>\nA\n\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    parser = AnswerParser(calls=replace(formats.QWEN_CODER, schemas=SCHEMAS))
    assert parse(parser, text, 4)["calls"] == [
        ("get_weather", {"zip": "0123", "days": 2, "city": "A\n"})
    ]


class Letters:
    """A vocabulary of letters: what templates need of one to be rendered."""

    bos, eos, add_bos = 1, 2, False
    bos_text, eos_text = "<BOS>", "<EOS>"

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        return [ord(char) for char in text]

    def special_texts(self) -> dict[str, int]:
        return {}


# Templates that write calls in a way of their own, or none: calls are not parsed for these.
UNKNOWN = (
    "Apertus", "Kimi-K3", "Kimi-K2-Instruct", "Kimi-K2-Thinking", "LFM2", "MiniMax-M3",
    "functionary-medium-v3.2", "gemma-4", "muse-glimmer", "MiniCPM5", "tencent-Hy3",
    "SmolLM3", "granite-3.3", "rwkv", "gemma-2", "Phi-3.5", "firefunction", "command-r-plus",
    "R1-Distill-Llama", "GigaChat3-10B",
)  # fmt: skip
FOLDER = os.environ.get("SPECCHAT_TEMPLATES")
TEMPLATES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_what_a_template_renders_is_parsed_back(path: Path) -> None:
    if any(word in path.name for word in UNKNOWN):
        pytest.skip("not parsed")
    template = ChatTemplate(path.read_text("utf-8"), Letters())
    format = call_format(template, TOOLS)
    family = of_template(template.source)
    single = family in (formats.LLAMA3, formats.GIGACHAT, formats.HARMONY)
    wanted = BOTH[:1] if single else BOTH
    calls = tuple(
        {"id": f"call0000{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(wanted)
    )
    user = Message("user", "Hi")
    text = template.render(
        [user, Message("assistant", "", tool_calls=calls)],
        tools=described(TOOLS),
        add_generation_prompt=False,
    )
    text = text[text.rindex("Hi") + 2 :]
    if family is formats.HARMONY:
        whole = parse(HarmonyParser(), text.removeprefix("<|end|><|start|>assistant"), 3)
    else:
        text = text[text.index('{"name"' if format.bare else format.start) :]
        whole = parse(AnswerParser(THINK, calls=format), text, 3)
    assert whole["calls"] == wanted


FAMILY_TEMPLATE = """\
{%% if tools %%}{{ tools | tojson }} Write %s{%% endif %%}
{%% for message in messages %%}{{ message.role }}: {{ message.content }}
{%% endfor %%}assistant:"""


@pytest.mark.parametrize(
    "format",
    [formats.DEEPSEEK, formats.QWEN_CODER, formats.MISTRAL, formats.HARMONY],
    ids=lambda f: f.name,
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_enforced_for_every_family(
    smollm2: Any, serve_service: Any, format: Any, stream: bool
) -> None:
    signs = format.start + ("<function=" if format is formats.QWEN_CODER else format.end)
    options = ModelOptions(n_ctx=512, threads=1)
    engine = Engine.load(smollm2, options=options, template=FAMILY_TEMPLATE % signs)
    assert call_format(engine.template, TOOLS).name == format.name
    service = Service(engine)
    fields = {"tools": described(TOOLS[1:]), "tool_choice": "required", "max_tokens": 60}
    fields["tools"][0]["function"]["parameters"] |= {
        "properties": {"zone": {"enum": ["CET", "UTC"]}},
        "required": ["zone"],
        "additionalProperties": False,
    }
    try:
        with serve_service(service) as endpoint:
            if stream:
                chunks = endpoint.chunks("What time is it?", **fields)
                deltas = [c["choices"][0]["delta"] for c in chunks]
                calls = [call["function"] for d in deltas for call in d.get("tool_calls", ())]
                name, text = calls[0]["name"], "".join(call["arguments"] for call in calls)
                assert not any(delta.get("content") for delta in deltas)
            else:
                (choice,) = endpoint.answer("What time is it?", **fields)["choices"]
                call = choice["message"]["tool_calls"][0]["function"]
                name, text = call["name"], call["arguments"]
                assert choice["finish_reason"] == "tool_calls"
    finally:
        service.close(wait=10)
    assert name == "get_time"
    # A list of calls may have been cut short; each begun call is well formed.
    assert json.loads(text[: text.index("}") + 1])["zone"] in ("CET", "UTC")
