"""Server-sent events: one JSON object per event, then [DONE]."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from specchat.server.errors import ApiError, from_engine
from specchat.server.jobs import Job

PING_SECONDS = 5.0  # between comments that keep a connection open during a long prefill
SEND_SECONDS = 60.0  # for a client to read on before it is given up
_SHUTDOWN_SECONDS = 3600.0  # `Jobs.stop` ends streams before sse-starlette would cut them

DONE = b"data: [DONE]\n\n"

log = logging.getLogger("specchat.server")


def event(value: dict[str, Any], name: str = "") -> bytes:
    """`value` as one server-sent event."""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


class StreamResponse(EventSourceResponse):
    """Sends `events`; an ApiError among them becomes the last one. Closes the job."""

    def __init__(self, job: Job, events: AsyncIterator[bytes]) -> None:
        self._job = job
        super().__init__(
            _guarded(events),
            ping=PING_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="ping"),
            sep="\n",
            send_timeout=SEND_SECONDS,
            shutdown_event=anyio.Event(),
            shutdown_grace_period=_SHUTDOWN_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.close()


async def _guarded(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for item in events:
            yield item
    except Exception as error:
        if not isinstance(error, ApiError):
            log.exception("a stream failed")
        yield event(from_engine(error).body)
