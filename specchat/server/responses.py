"""POST /v1/responses, without the storing: every request brings its whole conversation."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from anyio.to_thread import run_sync
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specchat.server.answer import Answer
from specchat.server.body import parse
from specchat.server.chat import prepare
from specchat.server.context import Context, context
from specchat.server.errors import ApiError, from_engine, from_validation
from specchat.server.jobs import Job, hanging_up_cancels
from specchat.server.responses_input import ResponsesRequest, as_chat
from specchat.server.responses_output import Output
from specchat.server.streaming import StreamResponse, event
from specchat.server.usage import timings, usage


async def create(request: Request) -> Response:
    body = await parse(request, ResponsesRequest)
    server = context(request)
    try:
        chat = as_chat(body)
    except ValidationError as error:
        raise from_validation(error) from None
    prepared = await run_sync(prepare, server.engine, chat, server.defaults)
    job = server.jobs.start([prepared.prompt], prepared.settings)
    answer, output = prepared.new_answer(), Output()
    response = _response(server, body)
    if body.stream:
        return StreamResponse(job, _events(server, job, answer, output, response))
    async with hanging_up_cancels(request, job):
        async for _, item in job:
            for _ in output.add(answer.add(item)):
                pass
    _complete(server, response, answer, output)
    return JSONResponse(response)


def _response(server: Context, body: ResponsesRequest) -> dict[str, Any]:
    """The response object before anything was written."""
    sampling = server.defaults.sampling
    text = body.text.model_dump(exclude_none=True, by_alias=True)
    choice = body.tool_choice
    # Clients with strict models want every field of the object, null or not.
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "model": server.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "metadata": body.metadata,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "temperature": sampling.temperature if body.temperature is None else body.temperature,
        "top_p": sampling.top_p if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "text": {"format": {"type": "text"}, **text},
        "reasoning": {"effort": None, "summary": None},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [{**tool.model_dump(), "strict": False} for tool in body.tools],
        "parallel_tool_calls": body.parallel_tool_calls,
        "truncation": "disabled",
        "service_tier": "default",
        "prompt_cache_key": None,
        "safety_identifier": None,
        "store": False,
        "previous_response_id": None,
        "usage": None,
    }


def _complete(server: Context, response: dict[str, Any], answer: Answer, output: Output) -> None:
    server.metrics.answered([answer])
    cut = answer.reason == "length"
    for _ in output.close("incomplete" if cut else "completed"):
        pass
    counts = usage([answer])
    prompt = counts["prompt_tokens_details"]
    response |= {
        "status": "incomplete" if cut else "completed",
        "completed_at": None if cut else int(time.time()),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output.items,
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {
                name: prompt[name] for name in ("cached_tokens", "cache_write_tokens")
            },
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": counts["completion_tokens_details"]["reasoning_tokens"]
            },
            "total_tokens": counts["total_tokens"],
        },
        "timings": timings([answer]),
    }


async def _events(
    server: Context, job: Job, answer: Answer, output: Output, response: dict[str, Any]
) -> AsyncIterator[bytes]:
    number = 0

    def sent(value: dict[str, Any]) -> bytes:
        nonlocal number
        number += 1
        return event({**value, "sequence_number": number - 1}, value["type"])

    yield sent({"type": "response.created", "response": response})
    yield sent({"type": "response.in_progress", "response": response})
    try:
        async for _, item in job:
            for value in output.add(answer.add(item)):
                yield sent(value)
    except ApiError as error:
        shown = from_engine(error)
        yield sent(
            {"type": "error", "code": shown.code, "message": shown.message, "param": shown.param}
        )
        return
    for value in output.close("incomplete" if answer.reason == "length" else "completed"):
        yield sent(value)
    _complete(server, response, answer, output)
    yield sent({"type": f"response.{response['status']}", "response": response})
