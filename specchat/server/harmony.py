"""Answers in OpenAI's harmony format, which gpt-oss models write: messages with headers.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>

A call is a message to `functions.NAME`, which its header says before or after the channel.
Source: the template of gpt-oss and OpenAI's "harmony response format".
"""

from __future__ import annotations

import re

from specchat.server.call_formats import HARMONY
from specchat.server.call_parsing import Calls, Delta
from specchat.server.parsing import overlap

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_HEADERS = ("<|start|>", "<|channel|>", "to=")  # how one can begin
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_.:-]+)")


class HarmonyParser:
    """Splits one answer; like `AnswerParser`."""

    def __init__(self) -> None:
        self._held = ""
        self._kind = ""  # of the message under way; "" in its header
        self.calls = 0

    @property
    def reasoning(self) -> bool:
        return self._kind == "reasoning_content"

    def push(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """The end of the answer; a header cut short is not told."""
        held, self._held = self._held, ""
        if not self._kind and "<|" not in held:  # no header after all
            self._kind = "content"
        self.calls += self._kind == "tool_calls"
        return self._text(held) if self._kind else []

    def _step(self, deltas: list[Delta]) -> bool:
        if not self._kind:
            return self._header(deltas)
        found = [(at, mark) for mark in _ENDS if (at := self._held.find(mark)) >= 0]
        at, mark = min(found, default=(-1, ""))
        cut = at if mark else len(self._held) - max(overlap(self._held, m) for m in _ENDS)
        deltas += self._text(self._held[:cut])
        self._held = self._held[cut:] if mark == _HEADERS[0] else self._held[cut + len(mark) :]
        if mark:
            self.calls += self._kind == "tool_calls"
            self._kind = ""
        return bool(mark)

    def _header(self, deltas: list[Delta]) -> bool:
        """Read a header once it is whole. What can be none is content: a model that was not
        trained for it, or whose answer a grammar rules.
        """
        begun = self._held.lstrip()
        if not any(begun.startswith(h) or h.startswith(begun) for h in _HEADERS):
            self._kind = "content"
            return True
        header, found, rest = self._held.partition(_MESSAGE)
        if not found:
            return False
        self._held = rest
        if call := _RECIPIENT.search(header):
            self._kind = "tool_calls"
            deltas.append(Calls(HARMONY, self.calls).begin(call[1]))
        elif "<|channel|>analysis" in header:
            self._kind = "reasoning_content"
        else:  # final, or a commentary for the user
            self._kind = "content"
        return True

    def _text(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._kind == "tool_calls":
            return [Calls(HARMONY, self.calls).arguments(text)]
        return [{self._kind: text}]
