"""POST /v1/responses (to come)."""

from starlette.requests import Request
from starlette.responses import Response

from specchat.server.errors import ApiError


async def create(request: Request) -> Response:
    raise ApiError(501, "not yet")
