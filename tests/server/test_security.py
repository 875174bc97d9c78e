"""Who gets in."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from specchat.errors import BadRequestError
from specchat.server.body import MAX_BYTES
from specchat.server.run import PortError, listen
from specchat.server.security import Door, host_of, is_loopback

KEY = "a secret key"


def get(endpoint: Any, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return endpoint.http.get("/v1/models", headers=named).status_code


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:99", 200),
        ("localhost.:8080", 200),
        ("127.0.0.1", 200),
        ("127.8.9.1:1", 200),
        ("[::1]:8080", 200),
        ("[::ffff:127.0.0.1]", 200),
        ("example.com", 403),
        ("127.0.0.1.example.com", 403),
        ("localhost.example.com", 403),
        ("192.168.1.10", 403),
        ("[::2]", 403),
        ("::1", 403),
        ("localhost:99999", 403),
        ("localhost@example.com", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_only_this_servers_names_get_in(endpoint: Any, host: str, status: int) -> None:
    assert get(endpoint, host=host) == status


def test_no_host_and_two_hosts_do_not_get_in(endpoint: Any) -> None:
    for lines in (
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as sock:
            sock.sendall(lines)
            status = sock.recv(100).split()[1]
        assert status in (b"400", b"403")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://example.com",
        "http://localhost:3000",
        "http://127.0.0.1",
        "",
        "file://",
        "x",
    ],
)
def test_web_pages_do_not_get_in(endpoint: Any, origin: str) -> None:
    assert get(endpoint, origin=origin) == 403


def test_the_servers_own_page_and_listed_ones_do(endpoint: Any, serve: Any) -> None:
    assert get(endpoint, origin=endpoint.url) == 200
    page = "http://localhost:3000"
    other = serve(Door(origins=(page,)))
    response = other.http.get("/v1/models", headers={"origin": page})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == page
    asked = {"origin": page, "access-control-request-method": "POST",
             "access-control-request-headers": "content-type"}  # fmt: skip
    assert other.http.options("/v1/chat/completions", headers=asked).status_code == 200
    assert get(other, origin="http://localhost:3001") == 403


def test_a_forbidden_request_runs_nothing(endpoint: Any) -> None:
    headers = {"origin": "null", "content-type": "application/json"}
    response = endpoint.http.post("/v1/chat/completions", content=b"{not json", headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "forbidden_origin"


def test_only_json_gets_in(endpoint: Any) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        response = endpoint.http.post(
            "/v1/chat/completions", content=b"{}", headers={"content-type": kind}
        )
        assert response.status_code == 415
    kind = "application/json; charset=utf-8"
    response = endpoint.http.post(
        "/v1/chat/completions", content=b"{}", headers={"content-type": kind}
    )
    assert response.status_code == 400


def test_large_bodies_do_not_get_in(endpoint: Any) -> None:
    headers = {"content-type": "application/json"}
    body = b" " * (MAX_BYTES + 1)
    response = endpoint.http.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 413
    pieces = iter([b" " * 1_000_000] * 12)  # chunked, so that no length is announced
    response = endpoint.http.post("/v1/completions", content=pieces, headers=headers)
    assert response.status_code == 413


def test_a_key_is_asked_for(serve: Any) -> None:
    endpoint = serve(Door(key=KEY))
    assert get(endpoint) == 401
    assert get(endpoint, authorization="Bearer wrong") == 401
    assert get(endpoint, authorization=f"Basic {KEY}") == 401
    assert get(endpoint, authorization=f"Bearer {KEY}x") == 401
    assert get(endpoint, authorization=f"bearer {KEY}") == 200
    assert get(endpoint, x_api_key=KEY) == 200
    assert endpoint.http.get("/health").status_code == 200
    assert endpoint.http.get("/metrics").status_code == 401
    assert endpoint.http.get("/nothing").status_code == 401
    assert endpoint.openai(KEY).models.list().data[0].id == "smol"
    assert endpoint.http.get("/v1/models").headers["www-authenticate"] == "Bearer"


def test_other_machines_need_a_key() -> None:
    for bind in ("0.0.0.0", "::", "192.168.1.10", "example.com", ""):
        with pytest.raises(BadRequestError, match="key"):
            Door(bind=bind)
        Door(bind=bind, key=KEY)
    for key in ("", "  ", "schlüssel"):
        with pytest.raises(BadRequestError, match="key"):
            Door(bind="0.0.0.0", key=key)


def test_listening_for_others_takes_addresses_and_listed_names() -> None:
    door = Door(bind="0.0.0.0", key=KEY, hosts=("box.lan",))

    def check(host: str) -> None:
        headers = [(b"host", host.encode()), (b"authorization", f"Bearer {KEY}".encode())]
        door.check({"type": "http", "method": "GET", "path": "/v1/models", "headers": headers})

    for host in ("192.168.1.10:8080", "[fe80::1]", "localhost", "BOX.lan."):
        check(host)
    with pytest.raises(Exception, match="Host"):
        check("rebound.example.com")


def test_every_answer_has_a_request_id(endpoint: Any) -> None:
    for path in ("/health", "/nothing"):
        assert endpoint.http.get(path).headers["x-request-id"].startswith("req_")
    given = endpoint.http.get("/health", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    given = endpoint.http.get("/health", headers={"x-request-id": "not mine"})
    assert given.headers["x-request-id"].startswith("req_")
    assert "server" not in given.headers


def test_prompts_and_keys_are_not_logged(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = serve(Door(key=KEY))
    endpoint.http.headers["authorization"] = f"Bearer {KEY}"
    logger = logging.getLogger("specchat")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG)
    try:
        endpoint.chat("my private question", max_tokens=1)
        endpoint.chat("my private question", temperature=9)
        endpoint.chunks("my private question", max_tokens=1)
        endpoint.http.get("/v1/models?key=private")
    finally:
        logger.removeHandler(caplog.handler)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("specchat", "uvicorn"))]
    assert any("/v1/chat/completions 200" in line for line in ours)
    assert not any("private" in line or KEY in line for line in ours)


def test_a_taken_port_is_one_clear_error() -> None:
    with listen("127.0.0.1", 0) as sock, pytest.raises(PortError, match="Address already in use"):
        listen("127.0.0.1", sock.getsockname()[1])


def test_loopback_and_hosts() -> None:
    assert is_loopback("::1")
    assert is_loopback("app.localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("")
    assert host_of("[::1]:80") == "::1"
    assert host_of("a b") is None
