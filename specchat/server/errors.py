"""Errors as clients of the OpenAI API expect them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from specchat.errors import (
    BadRequestError,
    GrammarError,
    PromptTooLongError,
    QueueFullError,
    SpecchatError,
    TemplateError,
)

INVALID = "invalid_request_error"


class ApiError(Exception):
    """An answer that is an error: `{"error": {"message", "type", "param", "code"}}`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type
        self.param, self.code, self.headers = param, code, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def from_engine(error: BaseException) -> ApiError:
    """What the engine raised, in HTTP's terms; nothing unexpected is told to the client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLongError):
        return bad_request(str(error), "messages", "context_length_exceeded")
    if isinstance(error, BadRequestError):
        return bad_request(str(error), error.param)
    if isinstance(error, TemplateError):
        return bad_request(str(error), "messages")
    if isinstance(error, GrammarError):
        return bad_request(str(error), "response_format")
    if isinstance(error, QueueFullError):
        return ApiError(
            429,
            str(error),
            type="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": str(math.ceil(error.seconds))},
        )
    if isinstance(error, SpecchatError):
        return ApiError(503, str(error), type="server_error", code=_code(error))
    return ApiError(500, "The server met an unexpected error.", type="server_error")


def shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down.", type="server_error", code="shutting_down")


def _code(error: SpecchatError) -> str:
    return type(error).__name__.removesuffix("Error").lower()


def from_validation(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a request body."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = _path(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return bad_request(f"{param}: {message}" if param else message, param or None)


def _path(location: Sequence[int | str]) -> str:
    """("messages", 0, "content") as messages[0].content; names of union members left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_MEMBERS:
            path += f".{part}" if path else part
    return path


_UNION_MEMBERS = {"str", "int", "float", "bool", "constrained"}


def hung_up() -> ApiError:
    """For logs and metrics alone, where 503 would look like a failure of the server."""
    return ApiError(499, "The client hung up.", code="hung_up")
