"""The endpoint as one ASGI application over a running `Service`."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from specchat.engine.engine import Settings
from specchat.engine.llama import EmbeddingModel
from specchat.engine.service import Service
from specchat.errors import SpecchatError
from specchat.server import chat, completions, embeddings, models, openapi, responses
from specchat.server.context import Context, context
from specchat.server.errors import ApiError, from_engine
from specchat.server.jobs import Jobs
from specchat.server.metrics import Metrics
from specchat.server.security import Door, Guard

_ANY = ("GET", "POST", "DELETE")

log = logging.getLogger("specchat.server")


def create_app(
    service: Service,
    *,
    door: Door | None = None,
    defaults: Settings | None = None,
    model: str | None = None,
    embedder: EmbeddingModel | None = None,
) -> Starlette:
    """`defaults` answer what a request leaves open; `model` is the name clients see (else
    the target file's). Service and embedder stay the caller's.
    """
    door = door or Door()
    metrics = Metrics(service)
    routes = [
        Route("/health", _health),
        Route("/v1/health", _health),
        Route("/metrics", _metrics),
        Route("/openapi.json", _openapi),
        Route("/docs", _docs),
        Route("/v1/models", models.listed),
        Route("/v1/models/{model:path}", models.one),
        Route("/v1/models/{model:path}", models.deleted, methods=["DELETE"]),
        Route("/v1/chat/completions", chat.create, methods=["POST"]),
        Route("/v1/chat/completions", _stored),
        Route("/v1/chat/completions/{rest:path}", _not_stored, methods=_ANY),
        Route("/v1/completions", completions.create, methods=["POST"]),
        Route("/v1/responses", responses.create, methods=["POST"]),
        Route("/v1/responses/{rest:path}", _not_stored, methods=_ANY),
        Route("/v1/embeddings", embeddings.create, methods=["POST"]),
    ]
    middleware = [Middleware(Guard, door, metrics, [route.path for route in routes])]
    if door.origins:
        allowed = list(door.origins)
        cors = Middleware(
            CORSMiddleware,
            allow_origins=allowed,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            ApiError: _api_error,
            SpecchatError: _api_error,
            HTTPException: _http_error,
            Exception: _api_error,
        },
    )
    app.router.redirect_slashes = False
    app.state.context = Context(
        service=service,
        defaults=defaults or Settings(),
        model=model or service.engine.target.path.stem,
        metrics=metrics,
        jobs=Jobs(service),
        embedder=embedder,
    )
    return app


async def _health(request: Request) -> Response:
    running, waiting = context(request).service.load
    return JSONResponse({"status": "ok", "running": running, "waiting": waiting})


async def _metrics(request: Request) -> Response:
    text = context(request).metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _openapi(request: Request) -> Response:
    return JSONResponse(openapi.document())


async def _docs(request: Request) -> Response:
    return HTMLResponse(openapi.page())


async def _stored(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [], "has_more": False})  # nothing ever is


async def _not_stored(request: Request) -> Response:
    """Retrieving, changing, cancelling, compacting: all that needs an answer of earlier."""
    raise ApiError(
        404,
        "This server stores no answers: it keeps nothing that could be found by an id.",
        code="not_stored",
    )


async def _api_error(request: Request, error: Exception) -> Response:
    answer = from_engine(error)
    if answer.status >= 500:
        log.error("%s: %s", type(error).__name__, request.url.path, exc_info=error)
    return JSONResponse(answer.body, answer.status, answer.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    answer = ApiError(error.status_code, f"{phrase}: {request.method} {request.url.path[:100]}")
    return JSONResponse(answer.body, answer.status, error.headers)
