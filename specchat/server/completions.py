"""POST /v1/completions: plain continuation of texts or token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specchat.engine.engine import Engine, Settings
from specchat.server.answer import Answer, Report
from specchat.server.body import parse
from specchat.server.context import Context, context, header
from specchat.server.errors import bad_request
from specchat.server.jobs import Job, hanging_up_cancels
from specchat.server.parsing import AnswerParser
from specchat.server.schemas import MAX_CHOICES, CompletionRequest
from specchat.server.settings import biased, checked, fitting, sampled
from specchat.server.streaming import DONE, StreamResponse, event
from specchat.server.usage import timings, usage

_DEFAULT_TOKENS = 16  # OpenAI's, for a model that need not stop by itself


async def create(request: Request) -> Response:
    body = await parse(request, CompletionRequest)
    server = context(request)
    prompts, settings = await run_sync(prepare, server.engine, body, server.defaults)
    report = Report(
        server.engine.target.tokenizer,
        logprobs=body.logprobs is not None,
        figures=body.specchat.tokens,
    )
    job = server.jobs.start(prompts, settings, body.n)
    writers = [
        _Writer(i, Answer(report, AnswerParser()), _echo(server.engine, prompts[i // body.n], body))
        for i in range(job.answers)
    ]
    if body.stream:
        return StreamResponse(job, _chunks(server, job, writers, body))
    choices: list[list[dict[str, Any]]] = [[w.first()] for w in writers]
    async with hanging_up_cancels(request, job):
        async for index, item in job:
            choices[index] += writers[index].add(item)
    answers = [writer.answer for writer in writers]
    server.metrics.answered(answers)
    return JSONResponse(
        {
            **header("text_completion", "cmpl", server.model),
            "choices": [_joined(parts) for parts in choices],
            "usage": usage(answers, body.n),
            "timings": timings(answers),
        }
    )


def prepare(
    engine: Engine, body: CompletionRequest, defaults: Settings
) -> tuple[list[list[int]], Settings]:
    """The prompts as token ids, and how to continue them. Raises what is wrong with either."""
    if body.n * _count(body) > MAX_CHOICES:
        raise bad_request(f"n times prompts must be at most {MAX_CHOICES}.", "n")
    if body.best_of is not None and body.best_of > body.n:
        raise bad_request("best_of larger than n is not supported.", "best_of", "not_supported")
    if body.echo and body.logprobs:
        raise bad_request(
            "logprobs of an echoed prompt are not supported.", "logprobs", "not_supported"
        )
    prompts = [fitting(ids, engine, "prompt") for ids in _prompts(engine, body)]
    for ids in prompts:
        if max(ids) >= engine.target.n_vocab:
            raise bad_request(
                f"The prompt has token {max(ids)}; this model has ids below "
                f"{engine.target.n_vocab}.",
                "prompt",
            )
    settings = sampled(
        body,
        defaults,
        max_tokens=_DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens,
        stops=body.stops,
        logprobs=body.logprobs,
        grammar=body.grammar,
    )
    return prompts, checked(biased(settings, body.logit_bias, engine), engine)


def _count(body: CompletionRequest) -> int:
    prompt = body.prompt
    return 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)


def _prompts(engine: Engine, body: CompletionRequest) -> list[list[int]]:
    prompt, tokenizer = body.prompt, engine.target.tokenizer
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        return [[int(token) for token in prompt]]
    found = []
    for item in [prompt] if isinstance(prompt, str) else prompt:
        if isinstance(item, list):
            found.append(item)
        else:
            ids = tokenizer.tokenize(str(item), parse_special=True)  # a prompt is the client's own
            bos = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
            found.append(ids if ids[:1] == bos else bos + ids)
    return found


def _echo(engine: Engine, prompt: list[int], body: CompletionRequest) -> str:
    if not body.echo:
        return ""
    pieces = b"".join(engine.target.tokenizer.piece(token) for token in prompt)
    return pieces.decode("utf-8", "replace")


class _Writer:
    """Choices of one answer, in pieces."""

    def __init__(self, index: int, answer: Answer, echo: str) -> None:
        self.answer = answer
        self._index, self._echo = index, echo
        self._offset = len(echo)

    def first(self) -> dict[str, Any]:
        """What comes before the answer."""
        return self._choice(self._echo)

    def add(self, item: Any) -> list[dict[str, Any]]:
        """The choices that an event adds: none or one."""
        update = self.answer.add(item)
        text = "".join(delta.get("content", "") for delta in update.deltas)
        reason = self.answer.reason if self.answer.finish else None
        if not (update or reason):
            return []
        choice = self._choice(text, reason)
        if update.logprobs:
            choice["logprobs"] = self._legacy(update.logprobs)
        if update.figures:
            choice["specchat"] = update.figures
        self._offset += len(text)
        return [choice]

    def _choice(self, text: str, reason: str | None = None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": reason}

    def _legacy(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Completions' older shape of log-probabilities."""
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries
            ],
            "text_offset": [self._offset for _ in entries],
        }


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The pieces of one choice as one."""
    whole = {**parts[0], "finish_reason": parts[-1]["finish_reason"]}
    whole["text"] = "".join(part["text"] for part in parts)
    for part in parts[1:]:
        for key in ("logprobs", "specchat"):
            for name, values in (part.get(key) or {}).items():
                found = whole.setdefault(key, None) or {}
                values = values if isinstance(values, list) else [values]
                found[name] = found.get(name, []) + values
                whole[key] = found
    return whole


async def _chunks(
    server: Context, job: Job, writers: list[_Writer], body: CompletionRequest
) -> AsyncIterator[bytes]:
    head = header("text_completion", "cmpl", server.model)
    if body.echo:
        for writer in writers:
            yield event({**head, "choices": [writer.first()]})
    answers = [writer.answer for writer in writers]
    async for index, item in job:
        for choice in writers[index].add(item):
            chunk: dict[str, Any] = {**head, "choices": [choice]}
            if all(answer.finish for answer in answers):
                chunk["timings"] = timings(answers)
            yield event(chunk)
    server.metrics.answered(answers)
    if body.stream_options.include_usage:
        yield event({**head, "choices": [], "usage": usage(answers, body.n)})
    yield DONE
