"""Requests made up by schemathesis from /openapi.json: never a 5xx, never an answer that the
document does not describe.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import write_tiny_llama

from specchat.engine.engine import Engine, Settings
from specchat.engine.llama import EmbeddingModel, ModelOptions
from specchat.engine.service import Service

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A service and an embedder with random models that answer at once."""
    write_tiny_llama(tmp_path / "chat.gguf")
    write_tiny_llama(tmp_path / "embed.gguf", pooling=1)
    engine = Engine.load(tmp_path / "chat.gguf", options=ModelOptions(threads=1, sequences=2))
    embedder = EmbeddingModel.load(tmp_path / "embed.gguf", threads=1)
    service = Service(engine)
    yield {"service": service, "embedder": embedder}
    service.close(wait=30)
    embedder.close()


def test_made_up_requests_meet_no_server_error(
    tiny: dict[str, Any], serve_service: Callable[..., Any], tmp_path: Path
) -> None:
    with serve_service(**tiny, defaults=Settings(max_tokens=4)) as endpoint:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run"),
                *(f"{endpoint.url}/openapi.json", "--checks", ",".join(CHECKS)),
                *("--phases", "coverage,fuzzing", "--max-examples", "20", "--workers", "1"),
                *("--generation-deterministic", "--request-timeout", "60", "--no-color"),
            ],
            cwd=tmp_path,  # it writes reports there
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
        assert " passed" in run.stdout
        assert tiny["service"].load == (0, 0)
        assert endpoint.answer(max_tokens=2)["usage"]["completion_tokens"] == 2
