"""Tells reasoning from answer while tokens come, and in texts that are complete."""

from __future__ import annotations

from specchat.engine.events import Token


class Reasoning:
    """Splits one answer. `marks` stand around reasoning; `opened`: the prompt ended inside."""

    def __init__(self, marks: tuple[str, str] | None, opened: bool = False) -> None:
        self._marks = marks
        self._state = "undecided" if marks else "answer"
        self._held: list[Token] = []
        self._text = self.reasoning = self.content = ""
        if marks and opened:
            self._state = "thinking"

    def push(self, token: Token) -> list[tuple[Token, bool]]:
        """The tokens whose place is now certain, each with whether it belongs to the
        reasoning. Marks do; a token is never cut.
        """
        if self._state == "answer" or self._marks is None:
            self.content += token.text
            return [(token, False)]
        start, end = self._marks
        self._text += token.text
        self._held.append(token)
        if self._state == "undecided":
            begun = self._text.lstrip()
            if start.startswith(begun):
                if begun != start:
                    return []
            elif not begun.startswith(start):
                self.content = self._text
                self._state = "answer"
                return self.flush()
            self._text = begun[len(start) :]
            self._state = "thinking"
        before, found, after = self._text.partition(end)
        self.reasoning = before.strip()
        ready = [(token, True) for token in self._held]
        self._held = []
        if found:
            self._state, self.content = "answer", after
        return ready

    def flush(self) -> list[tuple[Token, bool]]:
        """The end of the answer: tokens that could still have begun a mark."""
        ready = [(token, False) for token in self._held]
        if ready and not self.content:
            self.content = self._text
        self._held = []
        return ready

    @property
    def answer(self) -> str:
        """The text after the reasoning."""
        return self.content.lstrip("\n") if self.reasoning else self.content
