"""A model behind somebody else's server, offering its clients what `engine.Engine` does."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from specchat.engine.controller import Controller
from specchat.engine.engine import Cancel, Settings
from specchat.engine.events import Event, FinishReason
from specchat.engine.messages import Message
from specchat.engine.stats import Stats
from specchat.errors import EndpointError
from specchat.remote import metrics
from specchat.remote.answer import THINKING, Reader
from specchat.remote.chunks import parse
from specchat.remote.client import READ_SECONDS, Client, StatusError
from specchat.remote.dialects import OTHER, SPECCHAT, VLLM, Dialect, chat_body, dialect_of

_MOST_NAMED = 12  # models in a message

T = TypeVar("T")


class RemoteEngine:
    """Owned by one thread, but for `Cancel.set`. `model` is the name that requests carry,
    `n_ctx` its context in tokens (0: unknown), `draft` its draft where the server tells.
    `notes` are lines to show the user, once.
    """

    controller: Controller | None = None  # the server has its own, if any
    thinking = THINKING  # marks around reasoning, whatever the server puts around it

    def __init__(
        self,
        url: str,
        model: str | None = None,
        key: str | None = None,
        *,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        """Ask the server what it offers. Without `model` it must offer exactly one.

        Raises BadRequestError and EndpointError.
        """
        self._client = Client(url, key, read_seconds=read_seconds)
        self._runner = asyncio.Runner()
        self._closed = False
        self.notes: list[str] = []
        if key and self._client.url.scheme == "http" and not self._client.local:
            self.notes.append(f"the key goes to {self.server} unencrypted; https would hide it.")
        try:
            found = self._choose(self._run(self._models()), model)
        except BaseException:
            self.close()
            raise
        self.model, self.n_ctx, self.draft, self.dialect = (
            found.name, found.n_ctx, found.draft, found.dialect,
        )  # fmt: skip

    @property
    def server(self) -> str:
        """Host and port."""
        return self._client.server

    def _run(self, work: Awaitable[T]) -> T:
        async def awaiting() -> T:
            return await work

        return self._runner.run(awaiting())

    async def _models(self) -> list[_Offer] | None:
        """None where the server does not list what it has."""
        try:
            listed = await self._client.get_json("/models")
        except StatusError as error:
            if error.status in (404, 405, 501):
                return None
            raise
        data = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(data, list):
            raise EndpointError(f"{self.server} does not list its models as OpenAI's API does.")
        return [_offer(entry) for entry in data if isinstance(entry, dict) and entry.get("id")]

    def _choose(self, offers: list[_Offer] | None, model: str | None) -> _Offer:
        if offers is None:
            if model is None:
                raise EndpointError(f"{self.server} lists no models: name one with --model.")
            return _Offer(model)
        for offer in offers:
            if offer.name == model or (model is None and len(offers) == 1):
                return offer
        if not offers:
            raise EndpointError(f"{self.server} offers no model at the moment.")
        names = [offer.name for offer in offers]
        near = difflib.get_close_matches(model or "", names, _MOST_NAMED, 0.5)
        shown = near + [name for name in names if name not in near]
        more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
        wanted = f"does not offer {model!r}" if model else "offers several models"
        raise EndpointError(
            f"{self.server} {wanted}; choose with --model: {', '.join(shown[:_MOST_NAMED])}{more}."
        )

    def chat(
        self,
        messages: Sequence[Message],
        settings: Settings | None = None,
        cancel: Cancel | None = None,
        *,
        continue_final: bool = False,
    ) -> Iterator[Event]:
        """Answer a conversation; closing the iterator, or `cancel`, closes the connection.

        Raises BadRequestError here for what the server does not take, EndpointError while
        iterating.
        """
        body = chat_body(
            self.dialect, self.model, messages, settings or Settings(),
            continue_final=continue_final,
        )  # fmt: skip
        note = f"{self.server} is not told of {', '.join(body.left_out)}: not in OpenAI's API."
        if body.left_out and note not in self.notes:
            self.notes.append(note)
        return self._answer(body.json, cancel or Cancel())

    def _answer(self, body: dict[str, Any], cancel: Cancel) -> Iterator[Event]:
        reader = Reader()
        steps = _Steps(self._runner, self._events(body, reader), cancel)
        cancel.attach([steps])
        try:
            yield from steps
        finally:
            cancel.attach([])
            steps.close()
        yield from reader.end(_reason(reader, cancel))

    async def _events(self, body: dict[str, Any], reader: Reader) -> AsyncGenerator[Event, None]:
        before = await self._counters()
        async with self._client.post("/chat/completions", body) as stream:
            async for data in stream:
                if data.strip() == "[DONE]":
                    break
                chunk = parse(data)
                if chunk is None:
                    raise EndpointError(
                        f"{self.server} sent a malformed piece of the answer: {data[:100]!r}"
                    )
                if chunk.error is not None:
                    raise self._client.problem(chunk.error)
                for event in reader.push(chunk):
                    yield event
            else:
                if reader.reason is None:
                    raise EndpointError(f"{self.server} ended the stream in mid-answer.")
        if reader.reason == "content_filter":
            raise EndpointError(f"{self.server} withheld the rest: its content filter objected.")
        if before:
            drafted = metrics.between(before, await self._counters(), reader.completion_tokens)
            if drafted is not None:
                reader.drafted(drafted)

    async def _counters(self) -> metrics.Counters:
        """vLLM's; empty where there are none. Nobody's answer fails for want of figures."""
        if self.dialect is VLLM:
            with suppress(EndpointError, ValueError):
                return metrics.read(await self._client.get_text("/metrics"), self.model)
        return {}

    def stats(self) -> Stats:
        """Figures for the next answer."""
        return Stats()

    @property
    def tells_tokens(self) -> bool:
        """Whether the server reports where each token came from."""
        return self.dialect is SPECCHAT

    @property
    def continues(self) -> bool:
        """Whether the server can go on with an answer."""
        return self.dialect.continues is not None

    def close(self) -> None:
        """Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._run(self._client.close())
            self._runner.close()


class _Steps:
    """An asynchronous iterator, stepped by the thread that wants its items. `abort`, from any
    thread, ends the step that is running.
    """

    def __init__(
        self, runner: asyncio.Runner, events: AsyncGenerator[Event, None], cancel: Cancel
    ) -> None:
        self._runner, self._events, self._cancel = runner, events, cancel
        self._task: asyncio.Task[Any] | None = None

    def abort(self, on: bool = True) -> None:
        task = self._task
        if on and task is not None:
            self._runner.get_loop().call_soon_threadsafe(task.cancel)

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                event = self._runner.run(self._step(lambda: anext(self._events, None)))
            except asyncio.CancelledError:
                return
            if event is None:
                return
            yield event

    async def _step(self, work: Callable[[], Awaitable[T]]) -> T:
        # The task is known before the flag is read, so a `set` between the two is seen.
        self._task = asyncio.current_task()
        try:
            if self._cancel.is_set():
                raise asyncio.CancelledError
            return await work()
        finally:
            self._task = None

    def close(self) -> None:
        async def closing() -> None:
            await self._events.aclose()

        self._runner.run(closing())


@dataclass(frozen=True, slots=True)
class _Offer:
    """A model that a server lists."""

    name: str
    n_ctx: int = 0
    draft: str = ""
    dialect: Dialect = OTHER


def _offer(entry: dict[str, Any]) -> _Offer:
    meta = entry.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    context = meta.get("n_ctx") or entry.get("max_model_len")
    return _Offer(
        str(entry["id"]),
        context if isinstance(context, int) else 0,
        str(meta.get("draft") or ""),
        dialect_of(str(entry.get("owned_by") or "")),
    )


def _reason(reader: Reader, cancel: Cancel) -> FinishReason:
    if reader.reason is None and cancel.is_set():
        return FinishReason.CANCELLED
    return FinishReason.LENGTH if reader.reason == "length" else FinishReason.STOP
