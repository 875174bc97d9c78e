"""`specchat serve` as a process: before, while and after the model loads."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from specchat.cli.main import main
from specchat.server.app import create_app
from specchat.server.entrance import Entrance


def test_until_the_model_is_there_everything_is_503(service: Any) -> None:
    entrance = Entrance()
    client = TestClient(entrance, base_url="http://127.0.0.1")
    for answer in (client.get("/health"), client.post("/v1/chat/completions", json={})):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "loading"
    entrance.app = create_app(service)
    assert client.get("/health").json()["status"] == "ok"


def test_serve_says_where_and_ends_when_told(smollm2: Any) -> None:
    command = [sys.executable, "-m", "specchat", "serve", "--port", "0", "--ctx", "256"]
    process = subprocess.Popen([*command, "-m", smollm2], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"serving (http://127\.0\.0\.1:\d+)/v1", line)
        assert found, line
        assert httpx.get(f"{found[1]}/v1/models").json()["data"][0]["id"] == smollm2.stem
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().strip() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_what_cannot_be_served_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    assert main(["serve", "--port", "0", "-m", str(damaged)]) == 2
    assert "damaged.gguf is damaged" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"Cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err
