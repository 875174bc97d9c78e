"""Output items of a response as they grow, and the events that tell of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from specchat.server.answer import Update
from specchat.server.call_parsing import Delta

Sent = dict[str, Any]


class Output:
    """Feed it the updates of one answer; `items` is the output so far."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._logprobs: list[dict[str, Any]] = []  # of the tokens up to the next delta

    def add(self, update: Update) -> Iterator[Sent]:
        """The events that an update makes."""
        self._logprobs += update.logprobs
        for delta in update.deltas:
            if text := delta.get("reasoning_content"):
                yield from self._reasoning(text)
            elif text := delta.get("content"):
                yield from self._text(text)
            else:
                yield from self._call(delta)

    def _reasoning(self, text: str) -> Iterator[Sent]:
        if not self._is_open("reasoning"):
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin({"type": "reasoning", "summary": [], "content": [part]}, "rs")
        part = self._item["content"][0]
        part["text"] += text
        yield self._event("response.reasoning_text.delta", content_index=0, delta=text)

    def _text(self, text: str) -> Iterator[Sent]:
        if not self._is_open("message"):
            yield from self._begin({"type": "message", "role": "assistant", "content": []}, "msg")
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._item["content"].append(part)
            yield self._event(
                "response.content_part.added", content_index=0, part={**part, "logprobs": []}
            )
        part = self._item["content"][0]
        part["text"] += text
        logprobs, self._logprobs = self._logprobs, []
        part["logprobs"] += logprobs
        yield self._event(
            "response.output_text.delta", content_index=0, delta=text, logprobs=logprobs
        )

    def _call(self, delta: Delta) -> Iterator[Sent]:
        for call in delta["tool_calls"]:
            arguments = call["function"]["arguments"]
            if "id" in call:
                item = {
                    "type": "function_call",
                    "call_id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": "",
                }
                yield from self._begin(item, "fc")
            self._item["arguments"] += arguments
            if arguments:
                yield self._event("response.function_call_arguments.delta", delta=arguments)

    def close(self, status: str = "completed") -> Iterator[Sent]:
        """Complete the item under way."""
        item = self._open
        if item is None:
            return
        if item["type"] == "function_call":
            yield self._event(
                "response.function_call_arguments.done",
                arguments=item["arguments"],
                name=item["name"],
            )
        elif item["type"] == "reasoning":
            yield self._event(
                "response.reasoning_text.done", content_index=0, text=item["content"][0]["text"]
            )
        else:
            part = item["content"][0]
            yield self._event(
                "response.output_text.done",
                content_index=0,
                text=part["text"],
                logprobs=part["logprobs"],
            )
            yield self._event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        yield {**self._place("response.output_item.done"), "item": item}
        self._open = None

    def _begin(self, item: dict[str, Any], prefix: str) -> Iterator[Sent]:
        yield from self.close()
        self._open = {"id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress", **item}
        self.items.append(self._open)
        yield {**self._place("response.output_item.added"), "item": dict(self._open)}

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open["type"] == kind

    @property
    def _item(self) -> dict[str, Any]:
        assert self._open is not None
        return self._open

    def _place(self, kind: str) -> Sent:
        return {"type": kind, "output_index": len(self.items) - 1}

    def _event(self, kind: str, **values: Any) -> Sent:
        return {**self._place(kind), "item_id": self._item["id"], **values}
