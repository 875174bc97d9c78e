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
    embedder = server.embedder
    data = [_model(server), *([_embedder(server, embedder)] if embedder else [])]
    return JSONResponse({"object": "list", "data": data})


async def one(request: Request) -> Response:
    """Any name: requests for any name are answered too."""
    server = context(request)
    embedder = server.embedder
    if embedder is not None and request.path_params["model"] == embedder.path.stem:
        return JSONResponse(_embedder(server, embedder))
    return JSONResponse(_model(server))


async def deleted(request: Request) -> Response:
    raise ApiError(403, "The loaded model cannot be deleted.", code="not_supported")


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


def _embedder(server: Context, embedder: EmbeddingModel) -> dict[str, Any]:
    meta = {"n_ctx": embedder.n_ctx, "n_embd": embedder.width}
    return {**_model(server), "id": embedder.path.stem, "meta": meta}
