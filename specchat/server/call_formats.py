"""How the families of chat templates write tool calls: one row each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NAME = r"([A-Za-z0-9_.:-]+)"
_BETWEEN = r'[\s,;\[\]}]|"id"\s*:\s*"[^"]*"'  # calls in JSON; some end with an id


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family: what stands between the marks `start` and `end`.

    Everywhere JSON with `name` and arguments (`key` in what is enforced) is understood. `head`
    is what else may stand before arguments in JSON, with the name as its group, `noise` what
    may stand before a head. `call` finds a name and a body that is not JSON, `argument` a key
    and a value in there. `bare` where JSON alone may be the whole answer. `prefix` begins a
    call in the prompt, for one that is required. `parts` are further marks that a vocabulary
    may have as special tokens.
    """

    name: str
    start: str
    end: str
    prefix: str
    key: str = "arguments"
    array: bool = False
    bare: bool = False
    short_ids: bool = False
    head: re.Pattern[str] | None = None
    noise: re.Pattern[str] = re.compile(rf"(?:{_BETWEEN})+")
    call: re.Pattern[str] | None = None
    argument: re.Pattern[str] | None = None
    parts: tuple[str, ...] = ()
    # The parameters' JSON schemas by function, which tell texts from numbers in XML.
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(mark for mark in (self.start, self.end, *self.parts) if mark)


def _noise(*marks: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join([_BETWEEN, *map(re.escape, marks)])})+")


def _marked(name: str, start: str, end: str, **more: Any) -> CallFormat:
    return CallFormat(name, start, end, f"{start}\n", **more)


def _xml(name: str, start: str, end: str, call: str, argument: str) -> CallFormat:
    patterns = {"call": re.compile(call, re.DOTALL), "argument": re.compile(argument, re.DOTALL)}
    return _marked(name, start, end, **patterns)


HERMES = _marked("hermes", "<tool_call>", "</tool_call>")
MISTRAL = CallFormat(
    "mistral", "[TOOL_CALLS]", "", "[TOOL_CALLS]", array=True, short_ids=True,
    head=re.compile(rf"(?:TOOL_CALLS\])?\s*{_NAME}\s*(?:\[CALL_ID\][^\[{{]*)?(?:\[ARGS\])?\s*(?=\{{)"),
    parts=("[CALL_ID]", "[ARGS]"),
)  # fmt: skip
LLAMA3 = CallFormat("llama3", "<|python_tag|>", "", "", key="parameters", bare=True)
DEEPSEEK = CallFormat(
    "deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜>",
    head=re.compile(
        rf"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?{_NAME}"
        r"(?:<｜tool▁sep｜>)?\s*(?:```json)?\s*(?=\{)"
    ),
    noise=_noise("```", "<｜tool▁call▁end｜>"),
    parts=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)  # fmt: skip
KIMI = CallFormat(
    "kimi", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_calls_section_begin|>",
    head=re.compile(
        r"<\|tool_call_begin\|>\s*(?:functions\.)?([A-Za-z0-9_.:-]+?)(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>\s*(?=\{)"
    ),
    noise=_noise("<|tool_call_end|>"),
    parts=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)  # fmt: skip
SOLAR = CallFormat(
    "solar", "<|tool_calls|>", "", "<|tool_calls|>",
    head=re.compile(
        rf"<\|tool_call:begin\|>[^<]*<\|tool_call:name\|>{_NAME}<\|tool_call:args\|>\s*(?=\{{)"
    ),
    noise=_noise("<|tool_call:end|>", "<|calls|>"),
    parts=("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
)  # fmt: skip
FUNCTIONARY = CallFormat(
    "functionary", "<function=", "</function>", "<function=",
    head=re.compile(rf"{_NAME}>\s*(?=\{{)"),
)  # fmt: skip
COMMAND_R = _marked("command-r", "<|START_ACTION|>", "<|END_ACTION|>")
PHI4 = _marked("phi4", "<|tool_call|>", "<|/tool_call|>", array=True)
GRANITE = CallFormat("granite", "<|tool_call|>", "", "<|tool_call|>", array=True)
NEMOTRON = _marked("nemotron", "<TOOLCALL>", "</TOOLCALL>", array=True)
TOOL_CALLS = _marked("tool_calls", "<tool_calls>", "</tool_calls>")
GIGACHAT = CallFormat("gigachat", "<|function_call|>", "", "<|function_call|>")
# Calls of one's own choice are read by `harmony.py`; this row serves those that are required.
HARMONY = CallFormat(
    "harmony", "<|channel|>commentary json<|message|>", "<|call|>",
    "<|channel|>commentary json<|message|>",
    parts=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>"),
)  # fmt: skip

_FUNCTION = rf"<function={_NAME}>(.*?)</function>"
_PARAMETER = r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>"
_INVOKE = rf'<invoke name="{_NAME}">(.*?)</invoke>'
_NAMED_PARAMETER = r'<parameter name="([^"]+)">\n?(.*?)\n?</parameter>'
_DSML_INVOKE = rf'<｜DSML｜invoke name="{_NAME}">(.*?)</｜DSML｜invoke>'
_DSML_PARAMETER = r'<｜DSML｜parameter name="([^"]+)"[^>]*>(.*?)</｜DSML｜parameter>'
_ARG_KEY = r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"

QWEN_CODER = _xml("qwen-coder", "<tool_call>", "</tool_call>", _FUNCTION, _PARAMETER)
SEED = _xml("seed", "<seed:tool_call>", "</seed:tool_call>", _FUNCTION, _PARAMETER)
MINIMAX = _xml(
    "minimax", "<minimax:tool_call>", "</minimax:tool_call>", _INVOKE, _NAMED_PARAMETER
)  # fmt: skip
GLM = _xml("glm", "<tool_call>", "</tool_call>", rf"\A\s*{_NAME}\s*((?:<arg_key>.*)?)\Z", _ARG_KEY)
DEEPSEEK_V32 = _xml(
    "deepseek-v3.2", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>",
    _DSML_INVOKE, _DSML_PARAMETER,
)  # fmt: skip
DEEPSEEK_V4 = _xml(
    "deepseek-v4", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", _DSML_INVOKE, _DSML_PARAMETER
)  # fmt: skip

# By what a template's text contains, all of a row: the first row that fits.
_SIGNS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (("<|channel|>", "<|message|>", "<|call|>"), HARMONY),
    (("[TOOL_CALLS]",), MISTRAL),
    (("<｜tool▁calls▁begin｜>",), DEEPSEEK),
    (("<|tool_calls_section_begin|>",), KIMI),
    (("<|tool_call:begin|>",), SOLAR),
    (("<minimax:tool_call>",), MINIMAX),
    (("<seed:tool_call>",), SEED),
    (("｜DSML｜", "function_calls"), DEEPSEEK_V32),
    (("｜DSML｜", "tool_calls"), DEEPSEEK_V4),
    (("<tool_call>", "<arg_key>"), GLM),
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<tool_calls>",), TOOL_CALLS),
    (("<tool_call>",), HERMES),
    (("<|START_ACTION|>", "tool_name"), COMMAND_R),
    (("<|/tool_call|>",), PHI4),
    (("<|tool_call|>",), GRANITE),
    (("<TOOLCALL>",), NEMOTRON),
    (("<|function_call|>",), GIGACHAT),
    (("<function=",), FUNCTIONARY),
    (('"parameters"',), LLAMA3),
)


def of_template(source: str) -> CallFormat | None:
    """The family of a template that knows tools; None for one that none is known for."""
    for signs, format in _SIGNS:
        if all(sign in source for sign in signs):
            return format
    return None
