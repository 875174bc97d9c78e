"""What the endpoint offers, as an OpenAPI 3.1 document and as a page."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from specchat import __version__
from specchat.server import openapi_answers as answers
from specchat.server.embeddings import EmbeddingRequest
from specchat.server.openapi_answers import Schema
from specchat.server.responses_input import ResponsesRequest
from specchat.server.schemas import ChatRequest, CompletionRequest

_STREAM = "With stream: server-sent events."
# Path: what it does, its body, its answer, whether that may be a stream.
_POSTS: dict[str, tuple[str, type[BaseModel], Schema, bool]] = {
    "/v1/chat/completions": (f"Answer a conversation. {_STREAM}", ChatRequest, answers.CHAT, True),
    "/v1/completions": (
        f"Continue a text or token ids. {_STREAM}",
        CompletionRequest,
        answers.COMPLETION,
        True,
    ),
    "/v1/responses": (
        f"Answer a conversation; nothing is stored. {_STREAM}",
        ResponsesRequest,
        answers.RESPONSE,
        True,
    ),
    "/v1/embeddings": (
        "Vectors of texts; needs an embedding model.",
        EmbeddingRequest,
        answers.EMBEDDINGS,
        False,
    ),
}
_GETS = {
    "/v1/chat/completions": ("Stored answers: none ever are.", answers.STORED),
    "/v1/models": ("The loaded models.", answers.MODELS),
    "/v1/models/{model}": ("The loaded model, under any name.", answers.MODEL),
    "/health": ("Whether the server is up; needs no key.", answers.HEALTH),
    "/openapi.json": ("This document.", {"type": "object"}),
}
_JSON = "application/json"
_STATUSES = {
    "400": "Something in the request is wrong; `param` names it.",
    "401": "The API key is missing or wrong.",
    "403": "A foreign Host or Origin.",
    "404": "There is no such path.",
    "405": "The path has no such method.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests wait; see Retry-After.",
    "503": "The server is shutting down.",
}


@cache
def document() -> dict[str, Any]:
    models = [(model, "validation") for _, model, _, _ in _POSTS.values()]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, dict[str, Any]] = {}
    for path, (text, model, answer, streams) in _POSTS.items():
        body = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
        content: dict[str, Any] = {_JSON: {"schema": answer}}
        if streams:
            content["text/event-stream"] = {}
        request = {"required": True, "content": {_JSON: body}}
        paths[path] = {"post": {**_operation(text, content), "requestBody": request}}
    for path, (text, answer) in _GETS.items():
        paths.setdefault(path, {})["get"] = _operation(text, {_JSON: {"schema": answer}})
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{model}"]["get"]["parameters"] = [name]
    paths["/metrics"] = {"get": _operation("Counters for Prometheus.", {"text/plain": {}})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "specchat", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": answers.ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(text: str, content: dict[str, Any]) -> dict[str, Any]:
    error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {code: {"description": why, "content": error} for code, why in _STATUSES.items()}
    return {
        "summary": text,
        "responses": {"200": {"description": "Answered.", "content": content}, **errors},
    }


@cache
def page() -> str:
    """A page without scripts: nothing is loaded from elsewhere."""
    parts = []
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            parts.append(
                f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}"
            )
            if method == "post":
                parts.append(_fields(_POSTS[path][1]))
    style = "body{font:16px sans-serif;max-width:60em;margin:2em auto}td{padding:.2em 1em .2em 0}"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>specchat</title>"
        f"<style>{style}</style><h1>specchat {__version__}</h1>"
        "<p>An OpenAI-compatible endpoint; <a href=/openapi.json>openapi.json</a>"
        + "".join(parts)
        + "</html>"
    )


def _fields(model: type[BaseModel]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field.alias or name)}</code><td>{escape(field.description or '')}"
        for name, field in model.model_fields.items()
    )
    return f"<table>{rows}</table>"
