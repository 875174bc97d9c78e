"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specchat.engine.engine import Engine, Settings
from specchat.engine.grammar import ANY_OBJECT
from specchat.engine.template import PLAIN
from specchat.server import tools
from specchat.server.answer import Answer, Report, Update
from specchat.server.body import parse
from specchat.server.call_formats import HARMONY, CallFormat
from specchat.server.context import Context, context, header
from specchat.server.conversation import continues, messages_of, text_of
from specchat.server.errors import bad_request
from specchat.server.harmony import HarmonyParser
from specchat.server.jobs import Job, hanging_up_cancels
from specchat.server.parsing import AnswerParser
from specchat.server.schemas import ChatRequest
from specchat.server.settings import biased, checked, fitting, sampled
from specchat.server.streaming import DONE, StreamResponse, event
from specchat.server.usage import timings, usage


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request checked and ready for the engine."""

    prompt: list[int]
    settings: Settings
    report: Report
    calls: CallFormat | None
    forced: bool
    thinking: tuple[str, str] | None
    in_thought: bool  # the prompt ends inside reasoning
    harmony: bool  # the answer is one of messages with headers

    def new_answer(self) -> Answer:
        if self.harmony:
            return Answer(self.report, HarmonyParser())
        parser = AnswerParser(
            self.thinking, open=self.in_thought, calls=self.calls, forced=self.forced
        )
        return Answer(self.report, parser)


async def create(request: Request) -> Response:
    body = await parse(request, ChatRequest)
    server = context(request)
    prepared = await run_sync(prepare, server.engine, body, server.defaults)
    job = server.jobs.start([prepared.prompt], prepared.settings, body.n)
    answers = [prepared.new_answer() for _ in range(body.n)]
    if body.stream:
        return StreamResponse(job, _chunks(server, job, answers, body))
    async with hanging_up_cancels(request, job):
        async for index, item in job:
            answers[index].add(item)
    server.metrics.answered(answers)
    return JSONResponse(_completion(server, answers, body))


def prepare(engine: Engine, body: ChatRequest, defaults: Settings) -> Prepared:
    """Everything that can be found wrong with a request is found here, off the event loop.

    Raises ApiError and SpecchatError.
    """
    template = engine.template
    offered = tools.offered(body)
    forced = tools.is_forced(body)
    family = tools.call_format(template, offered)
    format = family if offered else None
    messages = messages_of(body)
    continued = continues(body)
    if not tools.is_native(template):
        messages = tools.instructed(messages, offered, family)
    prompt = template.tokens(
        messages,
        tools=tools.described(offered) if offered and tools.is_native(template) else None,
        add_generation_prompt=not continued,
        continue_final=continued,
        extra=body.chat_template_kwargs,
    )
    if forced and format and format.prefix:
        prompt += engine.target.tokenizer.tokenize(format.prefix, parse_special=True)
    stops = body.stops + (("\nUser:",) if template.source == PLAIN else ())
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    settings = sampled(
        body,
        defaults,
        max_tokens=limit,
        stops=stops,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=body.grammar,
        schema=_schema(body, format if forced else None),
        prediction=_prediction(engine, body),
    )
    settings = checked(biased(settings, body.logit_bias, engine), engine)
    special = engine.target.tokenizer.special_texts()
    marks = [*format.marks] if format else []
    harmony = family.name == HARMONY.name and not forced and not continued
    thinking = None if forced else template.thinking_tags
    marks += HARMONY.marks if harmony else thinking or ()
    return Prepared(
        prompt=fitting(prompt, engine),
        settings=settings,
        report=Report(
            engine.target.tokenizer,
            logprobs=body.logprobs,
            figures=body.specchat.tokens,
            visible={special[mark]: mark for mark in marks if mark in special},
        ),
        calls=format,
        forced=forced,
        thinking=thinking,
        in_thought=thinking is not None and ends_with(engine, prompt, thinking[0]),
        harmony=harmony,
    )


def ends_with(engine: Engine, prompt: list[int], mark: str) -> bool:
    """Whether the prompt's text ends with `mark`, blanks aside."""
    tokenizer = engine.target.tokenizer
    special = {token: text for text, token in tokenizer.special_texts().items()}
    text = ""
    for token in reversed(prompt[-32:]):
        text = (special.get(token) or tokenizer.piece(token).decode("utf-8", "replace")) + text
        if len(text.rstrip()) >= len(mark):
            break
    return text.rstrip().endswith(mark)


def _schema(body: ChatRequest, forced: CallFormat | None) -> dict[str, Any] | None:
    wanted = body.response_format
    if forced:
        return tools.call_schema(body, forced)
    if wanted is None or wanted.type == "text":
        return None
    if body.grammar is not None:
        raise bad_request("Give a grammar or a response_format, not both.", "grammar")
    if wanted.type == "json_object":
        return wanted.schema_ or dict(ANY_OBJECT)
    schema = wanted.json_schema.schema_ if wanted.json_schema else wanted.schema_
    if schema is None:
        raise bad_request("response_format json_schema needs a schema.", "response_format")
    return schema or dict(ANY_OBJECT)


def _prediction(engine: Engine, body: ChatRequest) -> tuple[int, ...]:
    if body.prediction is None:
        return ()
    text = text_of(body.prediction.content, "prediction.content")
    return tuple(engine.template.answer_tokens(text))


def _completion(server: Context, answers: list[Answer], body: ChatRequest) -> dict[str, Any]:
    choices = []
    for index, answer in enumerate(answers):
        message = {"refusal": None, "annotations": [], **answer.message}
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": _logprobs(answer.logprobs) if body.logprobs else None,
            "finish_reason": answer.reason,
        }
        if body.specchat.tokens:
            choice["specchat"] = {"tokens": answer.tokens, "rounds": answer.rounds}
        choices.append(choice)
    return {
        **header("chat.completion", "chatcmpl", server.model),
        "choices": choices,
        "usage": usage(answers, body.n),
        "timings": timings(answers),
    }


async def _chunks(
    server: Context, job: Job, answers: list[Answer], body: ChatRequest
) -> AsyncIterator[bytes]:
    head = header("chat.completion.chunk", "chatcmpl", server.model)
    for index in range(body.n):
        first = {"role": "assistant", "content": "", "refusal": None}
        yield event({**head, "choices": [_choice(index, first)]})
    async for index, item in job:
        answer = answers[index]
        update = answer.add(item)
        for choice in _update(index, update):
            yield event({**head, "choices": [choice]})
        if answer.finish is not None:
            last: dict[str, Any] = {**head, "choices": [_choice(index, {}, reason=answer.reason)]}
            if all(a.finish for a in answers):
                last["timings"] = timings(answers)
            yield event(last)
    server.metrics.answered(answers)
    if body.stream_options.include_usage:
        yield event({**head, "choices": [], "usage": usage(answers, body.n)})
    yield DONE


def _update(index: int, update: Update) -> list[dict[str, Any]]:
    """Chunks of one event: log-probabilities and figures go with the first delta."""
    if not update:
        return []
    chunks = [_choice(index, delta) for delta in update.deltas or [{}]]
    if update.logprobs:
        chunks[0]["logprobs"] = _logprobs(update.logprobs)
    if update.figures:
        chunks[0]["specchat"] = update.figures
    return chunks


def _choice(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _logprobs(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "refusal": None}
