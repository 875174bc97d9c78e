"""One answer as it grows: from the engine's events to deltas, and their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from specchat.engine.events import Event, Finish, FinishReason, Round, Token
from specchat.engine.llama import Tokenizer
from specchat.server.call_parsing import Delta
from specchat.server.harmony import HarmonyParser
from specchat.server.parsing import AnswerParser

_LOWEST = -9999.0  # stands for minus infinity, which JSON lacks


@dataclass(frozen=True, slots=True)
class Report:
    """What of an answer is to be told: log-probabilities, and specchat's own figures.
    `visible` are the texts of special tokens that the parser needs to see.
    """

    tokenizer: Tokenizer
    logprobs: bool = False
    figures: bool = False
    visible: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Update:
    """What one event adds: deltas, log-probabilities, and specchat's figures."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.deltas or self.logprobs or self.figures)


class Answer:
    """Everything known of one choice. Feed it all events of its request."""

    def __init__(self, report: Report, parser: AnswerParser | HarmonyParser) -> None:
        self._report, self._parser = report, parser
        self.message: dict[str, Any] = {"role": "assistant", "content": None}
        self.logprobs: list[dict[str, Any]] = []
        self.tokens: list[dict[str, Any]] = []
        self.rounds: list[dict[str, Any]] = []
        self.finish: Finish | None = None
        self.reasoning_tokens = 0
        self.predicted = self.predicted_accepted = 0  # tokens proposed from a prediction

    @property
    def reason(self) -> str:
        assert self.finish
        if self.finish.reason is FinishReason.STOP and self._parser.calls:
            return "tool_calls"
        return "length" if self.finish.reason is FinishReason.LENGTH else "stop"

    def add(self, event: Event) -> Update:
        update = Update()
        if isinstance(event, Token):
            self._token(event, update)
        elif isinstance(event, Round):
            if event.drafter == "prediction":
                self.predicted += event.draft_length
                self.predicted_accepted += event.accepted
            if self._report.figures:
                self.rounds.append(asdict(event))
                update.figures["round"] = self.rounds[-1]
        elif isinstance(event, Finish):
            self.finish = event
            update.deltas = self._parser.finish()
        for delta in update.deltas:
            self._merge(delta)
        return update

    def _token(self, token: Token, update: Update) -> None:
        report = self._report
        self.reasoning_tokens += self._parser.reasoning
        text = report.visible.get(token.id, "") + token.text
        if text:
            update.deltas = self._parser.push(text)
        if report.logprobs and not report.tokenizer.is_eog(token.id):
            self.logprobs.append(logprob_entry(token, report.tokenizer))
            update.logprobs = self.logprobs[-1:]
        if report.figures:
            self.tokens.append(_figures(token))
            update.figures["tokens"] = self.tokens[-1:]

    def _merge(self, delta: Delta) -> None:
        for key in ("content", "reasoning_content"):
            if key in delta:
                self.message[key] = (self.message.get(key) or "") + delta[key]
        for call in delta.get("tool_calls", ()):
            calls = self.message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                entry = {k: v for k, v in call.items() if k != "index"}
                calls.append({**entry, "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]


def logprob_entry(token: Token, tokenizer: Tokenizer) -> dict[str, Any]:
    """As in chat completions."""

    def entry(id: int, logprob: float | None) -> dict[str, Any]:
        piece = tokenizer.piece(id)
        value = _LOWEST if logprob is None else max(logprob, _LOWEST)
        return {
            "token": piece.decode("utf-8", "replace"),
            "logprob": value,
            "bytes": list(piece),
        }

    top = [entry(other.id, other.logprob) for other in token.alternatives]
    return {**entry(token.id, token.logprob), "top_logprobs": top}


def _figures(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "text": token.text,
        "kind": token.kind,
        "text_kind": token.text_kind,
        "round": token.round,
        "p": token.p,
        "q": token.q,
        "acceptance": token.acceptance,
        "rejected": asdict(token.rejected) if token.rejected else None,
    }
