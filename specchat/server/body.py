"""Reading a request's JSON without trusting it."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from specchat.server.errors import ApiError, bad_request, from_validation

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 64
MAX_SECONDS = 60.0  # for a body to arrive

B = TypeVar("B", bound=BaseModel)


async def parse(request: Request, model: type[B]) -> B:
    """The body as `model`. Raises ApiError for what is wrong with it."""
    raw = await _read(request)
    try:
        return model.model_validate(_decode(raw))
    except ValidationError as error:
        raise from_validation(error) from None


async def _read(request: Request) -> bytes:
    too_large = ApiError(
        413, f"The body is larger than {MAX_BYTES} bytes.", headers={"Connection": "close"}
    )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BYTES:
        raise too_large
    raw = bytearray()
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > MAX_BYTES:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, "The body did not arrive in time.") from None
    except ClientDisconnect:
        raise bad_request("The client went away.") from None
    return bytes(raw)


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise bad_request(_too_deep) from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        detail = str(error) if isinstance(error, json.JSONDecodeError | _Refused) else "not UTF-8"
        raise bad_request(f"The body is not valid JSON: {detail}.") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    _check_depth(value)
    if b"\\ud" in raw or b"\\uD" in raw:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise bad_request("The body has half of a surrogate pair in a text.") from None
    return value


_too_deep = f"The body is nested more than {MAX_DEPTH} levels deep."


class _Refused(ValueError):
    pass


def _refuse(name: str) -> Any:
    raise _Refused(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"{text[:20]} is too large a number")
    return number


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise bad_request(_too_deep)
