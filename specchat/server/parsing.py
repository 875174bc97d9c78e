"""What a model writes, told apart while it streams: reasoning, content, tool calls.

Every piece of text becomes deltas of OpenAI's shape as soon as it is certain what it is.
"""

from __future__ import annotations

import re
from typing import Any

from specchat.server.call_formats import CallFormat
from specchat.server.call_parsing import Calls, Delta


class AnswerParser:
    """Splits one answer. `thinking` are the marks around reasoning, `open` whether the
    prompt ended inside them; `calls` is how tool calls look, if any may come.
    """

    def __init__(
        self,
        thinking: tuple[str, str] | None = None,
        *,
        open: bool = False,
        calls: CallFormat | None = None,
        forced: bool = False,
    ) -> None:
        """`forced`: the prompt ended with the beginning of a tool call."""
        self._thinking, self._calls = thinking, calls
        self._held = ""
        self._begun = False  # whether something other than blanks was written
        self._mode = "reasoning" if open and thinking else "content"
        self._call: Calls | None = None
        self.calls = 0  # tool calls seen
        if forced and calls:
            self._start_call()

    @property
    def reasoning(self) -> bool:
        """Whether what comes now is reasoning."""
        return self._mode == "reasoning"

    def push(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """The end of the answer: what was held back."""
        deltas: list[Delta] = []
        if self._call:
            deltas += self._call.push(self._held)
            deltas += self._end_call()
        elif self._held:
            deltas += self._text(self._held)
        self._held = ""
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        """Take the next certain piece; False when more text is needed."""
        if self._mode == "reasoning":
            assert self._thinking
            if not self._begun:
                self._held = self._held.lstrip("\n")
                self._begun = bool(self._held)
            return self._until(self._thinking[1], deltas, self._end_reasoning)
        if self._call:
            end = self._calls.end if self._calls else ""
            if end:
                return self._until(end, deltas, lambda: deltas.extend(self._end_call()))
            deltas += self._call.push(self._held)
            self._held = ""
            return False
        if not self._begun:
            self._held = self._held.lstrip() if self._thinking or self._calls else self._held
            if not self._held:
                return False
            if self._thinking and self._held.startswith(self._thinking[0]):
                self._held = self._held[len(self._thinking[0]) :]
                self._mode = "reasoning"
                return True
            if self._thinking and self._thinking[0].startswith(self._held):
                return False
            if self._calls and self._calls.bare:
                verdict = _bare(self._held)
                if verdict is None:
                    return False
                if verdict:
                    self._start_call()
                    return True
        if self._calls and self._calls.start:
            return self._until(self._calls.start, deltas, self._start_call)
        if self._held:
            deltas += self._text(self._held)
        self._held = ""
        return False

    def _until(self, mark: str, deltas: list[Delta], found: Any) -> bool:
        """Pass on what stands before `mark`; call `found` when it is complete."""
        at = self._held.find(mark)
        cut = at if at >= 0 else len(self._held) - overlap(self._held, mark)
        before, self._held = self._held[:cut], self._held[cut:]
        if before:
            deltas += self._call.push(before) if self._call else self._text(before)
        if at < 0:
            return False
        self._held = self._held[len(mark) :]
        found()
        return True

    def _text(self, text: str) -> list[Delta]:
        if self._mode == "reasoning":
            return [{"reasoning_content": text}]
        if self.calls and not text.strip():
            return []  # line ends between calls
        self._begun = True
        return [{"content": text}]

    def _end_reasoning(self) -> None:
        self._mode, self._begun = "content", False

    def _start_call(self) -> None:
        assert self._calls
        self._begun = True
        self._call = Calls(self._calls, self.calls)

    def _end_call(self) -> list[Delta]:
        assert self._call
        assert self._calls
        call, self._call = self._call, None
        deltas = call.finish()
        self.calls = call.index
        rest = call.unparsed
        if rest.strip():  # not a call after all: nothing the model wrote gets lost
            deltas.append({"content": f"{self._calls.start}{rest}{self._calls.end}"})
        return deltas


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that could begin `mark`."""
    for n in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0


def _bare(text: str) -> bool | None:
    """Whether an answer that begins like this is a bare JSON call; None: not known yet."""
    head = re.sub(r"\s", "", text[:40])
    wanted = '{"name":'
    if head.startswith(wanted):
        return True
    return None if wanted.startswith(head) else False
