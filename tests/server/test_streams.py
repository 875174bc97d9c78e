"""Streams that end early, wait, or are cut off; requests side by side."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from specchat.server import streaming
from specchat.server.app import create_app
from specchat.server.run import Beside, listen

LONG = {
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "max_tokens": 400,
    "logit_bias": {"0": -100, "2": -100},  # SmolLM2's ends: a greedy story may be a short one
}


def idle(endpoint: Any) -> None:
    """Wait until nothing is answered any more."""
    deadline = time.monotonic() + 30
    while endpoint.service.load != (0, 0):
        assert time.monotonic() < deadline, "a request is stuck"
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_cancels(endpoint: Any, stream: bool, caplog: Any) -> None:
    body = json.dumps({**LONG, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"  # noqa: E501
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as sock:
        sock.sendall(head.encode() + body)
        if stream:
            assert b"200" in sock.recv(1000)
        while endpoint.service.load[0] == 0:
            time.sleep(0.01)
    before = time.monotonic()
    idle(endpoint)
    assert time.monotonic() - before < 5
    assert endpoint.answer(max_tokens=2)["usage"]["completion_tokens"] == 2
    assert not caplog.records
    if not stream:  # no failure of the server's, so not 503
        assert 'path="/v1/chat/completions",status="499"' in endpoint.http.get("/metrics").text


def test_a_waiting_request_that_hangs_up_leaves_the_queue(endpoint: Any, caplog: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(endpoint.chat, "Tell a story.", max_tokens=60) for _ in range(2)]
        while endpoint.service.load[0] < 2:
            time.sleep(0.01)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{endpoint.url}/v1/chat/completions", json=LONG, timeout=0.3)
        deadline = time.monotonic() + 20
        while endpoint.service.load[1]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert [b.result().status_code for b in busy] == [200, 200]
    idle(endpoint)
    assert not caplog.records  # no failure of the server's


def test_a_full_queue_is_a_429(endpoint: Any) -> None:
    streams = []
    try:
        for at in range(6):  # two answered, four waiting
            while at == 2 and endpoint.service.load != (2, 0):
                time.sleep(0.01)
            streams.append(endpoint.http.stream("POST", "/v1/chat/completions",
                                                json={**LONG, "stream": True}))  # fmt: skip
            streams[-1].__enter__()
        response = endpoint.chat()
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert endpoint.http.get("/health").json() == {"status": "ok", "running": 2, "waiting": 4}
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)
    idle(endpoint)
    assert endpoint.chat(max_tokens=1).status_code == 200


def test_answers_side_by_side(endpoint: Any) -> None:
    questions = ["Name a colour.", "Name an animal.", "Name a city.", "Name a dish."]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(endpoint.answer, questions))
        chunks = list(pool.map(endpoint.chunks, questions))
    for answer, stream in zip(answers, chunks, strict=True):
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in stream)
        assert text
        assert answer["choices"][0]["message"]["content"]
    idle(endpoint)


def test_pings_while_waiting(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.05)
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(endpoint.chat, "Tell a story.", max_tokens=60) for _ in range(2)]
        while endpoint.service.load[0] < 2:
            time.sleep(0.01)
        body = {**LONG, "max_tokens": 1, "stream": True}
        with endpoint.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = list(response.iter_lines())
        assert [b.result().status_code for b in busy] == [200, 200]
    assert ": ping" in lines
    assert lines.index(": ping") < lines.index("data: [DONE]")


def test_a_slow_reader_holds_up_nobody(endpoint: Any) -> None:
    with endpoint.http.stream(
        "POST", "/v1/chat/completions", json={**LONG, "max_tokens": 100, "stream": True}
    ) as slow:
        lines = slow.iter_lines()
        next(lines)
        assert endpoint.answer(max_tokens=20)["usage"]["completion_tokens"] == 20
        assert list(lines)[-2:][0] == "data: [DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_a_shutdown_ends_answers_with_an_error(service: Any, stream: bool) -> None:
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = Beside(create_app(service), sock, grace=0.2)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    stopper = threading.Timer(0.5, server.stop)
    stopper.start()
    body = {**LONG, "stream": stream, "specchat": {"draft_length": 0}}
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        text = response.read().decode()
    stopper.join()
    assert "shutting_down" in text
    assert "[DONE]" not in text
    assert response.status_code == (200 if stream else 503)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_short_answer_survives_a_shutdown(service: Any) -> None:
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = Beside(create_app(service), sock, grace=20)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    stopper = threading.Timer(0.1, server.stop)
    stopper.start()
    body = {**LONG, "max_tokens": 60, "stream": True, "specchat": {"draft_length": 0}}
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        text = response.read().decode()
    stopper.join()
    assert text.rstrip().endswith("data: [DONE]")
