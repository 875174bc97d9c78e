"""What clients meet first: 503 until there is an application to let them in to."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from specchat.server.errors import ApiError

_RETRY_SECONDS = 2


class Entrance:
    """An ASGI application in front of `app`, which may be set later, from any thread.

    llama-server answers 503 in the same case, and its clients poll `/health` until it is 200.
    """

    def __init__(self, app: Starlette | None = None) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            loading = ApiError(
                503,
                "The model is loading; try again shortly.",
                type="unavailable_error",
                code="loading",
                headers={"Retry-After": str(_RETRY_SECONDS)},
            )
            answer = JSONResponse(loading.body, loading.status, loading.headers)
            await answer(scope, receive, send)

    def end_answers(self, error: ApiError) -> None:
        """End all answers under way with `error`."""
        if self.app is not None:
            self.app.state.context.jobs.stop(error)
