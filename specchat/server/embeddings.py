"""POST /v1/embeddings: texts to vectors, where an embedding model is loaded."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specchat.engine.llama import EmbeddingModel
from specchat.engine.llama.embedding import Vectors
from specchat.server.body import parse
from specchat.server.context import context
from specchat.server.errors import ApiError, bad_request
from specchat.server.schemas import Body, TokenIds

MAX_INPUTS = 2048

Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
Ids = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingRequest(Body):
    input: str | TokenIds | Texts | Ids
    model: str = Field("", max_length=512, description="ignored: one model is loaded")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None, ge=1, description="cut to this many numbers and scaled to length 1 again"
    )
    user: str | None = Field(None, description="ignored")


async def create(request: Request) -> Response:
    body = await parse(request, EmbeddingRequest)
    server = context(request)
    model = server.embedder
    if model is None:
        raise ApiError(
            400,
            "The loaded model generates text; it makes no embeddings. Start the server with "
            "--embeddings and an embedding GGUF.",
            param="model",
            code="not_supported",
        )
    if body.dimensions is not None and body.dimensions > model.width:
        raise bad_request(
            f"dimensions is {body.dimensions}; {model.path.stem} makes {model.width} numbers.",
            "dimensions",
        )
    inputs = await asyncio.to_thread(_tokens, model, body)
    vectors = []
    for ids in inputs:  # one by one, so that a client that leaves stops it
        if await request.is_disconnected():
            raise bad_request("The client went away.")
        vectors.append(_cut(await asyncio.to_thread(model.embed, ids), body.dimensions))
    used = sum(map(len, inputs))
    return JSONResponse(
        {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _encoded(vector, body.encoding_format),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": model.path.stem,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }
    )


def _tokens(model: EmbeddingModel, body: EmbeddingRequest) -> list[Sequence[int]]:
    given: Any = body.input
    items = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    if any(isinstance(item, str) and not item for item in items):
        raise bad_request("An input is empty.", "input")
    texts = [model.tokens(item) if isinstance(item, str) else item for item in items]
    longest = max(map(len, texts))
    if longest > model.n_ctx:
        raise bad_request(
            f"An input has {longest} tokens; {model.path.stem} reads at most {model.n_ctx}.",
            "input",
            "context_length_exceeded",
        )
    return texts


def _cut(vector: Vectors, dimensions: int | None) -> Vectors:
    """The first numbers, scaled to length 1: what OpenAI's `dimensions` does."""
    if dimensions is None:
        return vector
    short = vector[:dimensions]
    return short / np.float32(max(float(np.linalg.norm(short)), 1e-12))


def _encoded(vector: Vectors, format: str) -> list[float] | str:
    if format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return [float(value) for value in vector]
