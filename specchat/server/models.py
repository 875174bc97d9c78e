"""GET /v1/models: what is loaded; the model that chats answers to any name."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specchat.engine.llama import EmbeddingModel
from specchat.server.context import Context, context
from specchat.server.errors import ApiError


async def listed(request: Request) -> Response:
    server = context(request)
    found = [_model(server)]
    if server.embedder is not None:
        found.append({**found[0], "id": server.embedder.path.stem, "meta": _meta(server.embedder)})
    return JSONResponse({"object": "list", "data": found})


async def one(request: Request) -> Response:
    """Any name: requests for any name are answered too."""
    return JSONResponse(_model(context(request)))


async def deleted(request: Request) -> Response:
    raise ApiError(403, "The loaded model cannot be deleted.", code="not_supported")


def _meta(embedder: EmbeddingModel) -> dict[str, Any]:
    return {"n_ctx": embedder.n_ctx, "n_embd": embedder.width}


def _model(server: Context) -> dict[str, Any]:
    engine = server.engine
    draft = engine.draft
    return {
        "id": server.model,
        "object": "model",
        "created": server.started,
        "owned_by": "specchat",
        "meta": {
            "n_ctx": engine.target.n_ctx,
            "n_vocab": engine.target.n_vocab,
            "n_params": engine.target.n_params,
            "size": engine.target.size_bytes,
            "draft": draft.path.stem if draft else None,
        },
    }
