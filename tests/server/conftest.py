"""A real server on a loopback port, with SmolLM2 behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from specchat.engine.engine import Engine, Settings
from specchat.engine.llama import ModelOptions
from specchat.engine.sampling import SamplingParams
from specchat.engine.service import Service
from specchat.server.app import create_app
from specchat.server.run import Beside, listen
from specchat.server.security import Door

CONTEXT = 512
DEFAULTS = Settings(sampling=SamplingParams(temperature=0.0), max_tokens=16, draft_length=0)


@dataclass
class Endpoint:
    """Where a server listens, and ways to talk to it."""

    port: int
    service: Service

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=120)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def chat(self, text: str = "Say hi.", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def answer(self, text: str = "Say hi.", **fields: Any) -> dict[str, Any]:
        response = self.chat(text, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any] | str]:
        """All `data:` of a stream, JSON decoded where it is some."""
        found: list[dict[str, Any] | str] = []
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: "):
                    data = line[6:]
                    found.append(data if data == "[DONE]" else json.loads(data))
        return found

    def chunks(self, text: str = "Say hi.", **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed chat, without the [DONE] that must end it."""
        body = {"messages": [{"role": "user", "content": text}], **fields}
        *chunks, done = self.events("/v1/chat/completions", body)
        assert done == "[DONE]"
        return chunks  # type: ignore[return-value]


@pytest.fixture(scope="session")
def service(smollm2: Any) -> Iterator[Service]:
    options = ModelOptions(n_ctx=CONTEXT, sequences=2, threads=1, prefill_chunk=64)
    service = Service(Engine.load(smollm2, options=options), waiting=4)
    yield service
    service.close(wait=30)


@pytest.fixture(scope="session")
def single(smollm2: Any) -> Iterator[Endpoint]:
    """A server with one sequence, whose answers can be repeated to the last bit: flash
    attention rounds by where in the cache a token lies, and SmolLM2 is sensitive to that.
    """
    options = ModelOptions(n_ctx=CONTEXT, threads=1, prefill_chunk=64)
    service = Service(Engine.load(smollm2, options=options), waiting=16)
    with serving(service) as found:
        yield found
    service.close(wait=30)


@pytest.fixture(scope="session")
def drafted(smollm2: Any) -> Iterator[Endpoint]:
    """A server whose draft is the target itself: most draft tokens are accepted."""
    options = ModelOptions(n_ctx=256, sequences=2, threads=1, prefill_chunk=64)
    service = Service(Engine.load(smollm2, smollm2, options=options), waiting=16)
    with serving(service) as found:
        yield found
    service.close(wait=30)


@contextmanager
def serving(service: Service, **options: Any) -> Iterator[Endpoint]:
    """`options` are those of `create_app`."""
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    app = create_app(service, **{"defaults": DEFAULTS, "model": "smol", **options})
    server = Beside(app, sock)
    endpoint = Endpoint(port, service)
    try:
        yield endpoint
    finally:
        endpoint.http.close()
        server.stop()


@pytest.fixture(scope="session")
def endpoint(service: Service) -> Iterator[Endpoint]:
    with serving(service) as found:
        yield found


@pytest.fixture(scope="session")
def serve_service() -> Callable[..., Any]:
    """Makes servers over any service, as context managers."""
    return serving


@pytest.fixture(scope="session")
def serve_with(service: Service) -> Callable[..., Any]:
    """Makes servers over the same engine, as context managers."""
    return partial(serving, service)


@pytest.fixture
def serve(service: Service) -> Iterator[Callable[[Door], Endpoint]]:
    """Starts further servers over the same engine."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda door: stack.enter_context(serving(service, door=door))
