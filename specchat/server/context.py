"""What all endpoints share: the engine's service and the server's defaults."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from specchat import __version__
from specchat.engine.engine import Engine, Settings
from specchat.engine.llama import EmbeddingModel
from specchat.engine.service import Service
from specchat.server.jobs import Jobs
from specchat.server.metrics import Metrics


@dataclass(slots=True)
class Context:
    """`model` is the name that clients see; `defaults` answer what a request leaves open."""

    service: Service
    defaults: Settings
    model: str
    metrics: Metrics
    jobs: Jobs
    embedder: EmbeddingModel | None = None
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def engine(self) -> Engine:
        return self.service.engine


def context(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


def header(kind: str, prefix: str, model: str) -> dict[str, Any]:
    """The fields that begin every completion object and every one of its chunks."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"specchat-{__version__}",
    }
