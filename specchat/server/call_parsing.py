"""Tool calls inside their marks, from text to deltas of OpenAI's shape."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import secrets
import string
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from specchat.server.call_formats import CallFormat

Delta = dict[str, Any]

# {"name": "f", "arguments": {   as far as the arguments can be passed on as they come
_HEAD = re.compile(
    r'\s*\{\s*(?:"(?:tool_call_)?id"\s*:\s*"[^"]*"\s*,\s*)?"(?:tool_)?name"\s*:\s*'
    r'("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


@dataclass(slots=True)
class Calls:
    """Tool calls inside their marks: one JSON object, several, an array, or name{...}."""

    format: CallFormat
    index: int
    text: str = ""
    _at: int = 0  # up to where `text` was looked at
    _sent: int = -1  # up to where arguments were passed on; -1 outside of any
    _scan: _JsonEnd = field(default_factory=lambda: _JsonEnd())

    def push(self, text: str) -> list[Delta]:
        self.text += text
        deltas: list[Delta] = []
        while self._advance(deltas):
            pass
        return deltas

    def _advance(self, deltas: list[Delta]) -> bool:
        if self._sent >= 0:
            end = self._scan.push(self.text, self._at)
            self._at = end if end is not None else len(self.text)
            if self._at > self._sent:
                deltas.append(self.arguments(self.text[self._sent : self._at]))
            self._sent = -1 if end is not None else self._at
            if end is None:
                return False
            self._drop(self._at)
            self.index += 1
            return True
        if noise := self.format.noise.match(self.text):
            self._drop(noise.end())
        head = self.format.head
        if match := _HEAD.match(self.text) or (head and head.match(self.text)):
            name = match[1]
            name = json.loads(name, strict=False) if name.startswith('"') else name
            deltas.append(self.begin(name))
            self._drop(match.end())
            self._sent, self._at, self._scan = 0, 0, _JsonEnd()
            return True
        return False

    def _drop(self, n: int) -> None:
        self.text, self._at = self.text[n:], 0

    def begin(self, name: str, arguments: str = "") -> Delta:
        call = {
            "index": self.index,
            "id": new_id(self.format),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        return {"tool_calls": [call]}

    def arguments(self, text: str) -> Delta:
        """More of the arguments of the call that was begun last."""
        return {"tool_calls": [{"index": self.index, "function": {"arguments": text}}]}

    def finish(self) -> list[Delta]:
        """The closing mark: a call in an unusual shape, whole at last."""
        if self._sent >= 0:  # cut short
            self._drop(self._at)
            self.index += 1
            return []
        if calls := list(self._written()):
            self.text = ""
            return [self._whole(name, arguments) for name, arguments in calls]
        deltas: list[Delta] = []
        try:
            found = json.loads(self.text, strict=False) if self.text.strip() else []
        except (ValueError, RecursionError):
            return []
        for call in found if isinstance(found, list) else [found]:
            arguments = call.get("arguments", call.get("parameters")) if _is_call(call) else None
            if arguments is None:
                return deltas
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments)
            deltas.append(self._whole(call["name"], arguments))
        self.text = ""
        return deltas

    def _whole(self, name: str, arguments: str) -> Delta:
        delta = self.begin(name, arguments)
        self.index += 1
        return delta

    def _written(self) -> Iterator[tuple[str, str]]:
        """Calls that are not written in JSON: names, and arguments as JSON."""
        call, argument = self.format.call, self.format.argument
        if call is None or argument is None:
            return
        for found in call.finditer(self.text):
            name = found[1]
            properties = self.format.schemas.get(name, {}).get("properties")
            types = properties if isinstance(properties, dict) else {}
            values = {
                key.strip(): _value(value, types.get(key.strip()))
                for key, value in argument.findall(found[2])
            }
            yield name, json.dumps(values, ensure_ascii=False)

    @property
    def unparsed(self) -> str:
        return self.text


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _value(text: str, schema: Any) -> Any:
    """An argument written without quotes: a text where the schema says so, else JSON."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    for read in (json.loads, ast.literal_eval):  # some templates write lists as Python does
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            with warnings.catch_warnings():  # of odd escapes in a text that is no Python
                warnings.simplefilter("ignore")
                value = read(text.strip())
            if _is_json(value):
                return value
    return text


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def new_id(format: CallFormat) -> str:
    """Mistral's templates insist on nine letters and digits."""
    letters = string.ascii_letters + string.digits
    length = 9 if format.short_ids else 24
    name = "".join(secrets.choice(letters) for _ in range(length))
    return name if format.short_ids else f"call_{name}"


class _JsonEnd:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str, start: int) -> int | None:
        """Look at `text` from `start` on; the index behind the object when it is complete."""
        for i in range(start, len(text)):
            char = text[i]
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return None
