"""An HTTP server on a loopback port that does what a test tells it, broken things included."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request. `body` is its JSON, if it has one."""

    protocol_version = "HTTP/1.1"
    server: Scripted

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        received = self.rfile.read(length)
        self.body: Any = json.loads(received) if received else None
        self.server.requests.append(self)
        answer = self.server.answers.get(f"{self.command} {self.path.partition('?')[0]}")
        if answer is None:
            self.json({"error": {"message": "Not Found"}}, 404)
        else:
            answer(self)

    do_GET = do_POST = do_HEAD = _any

    def log_message(self, *_: object) -> None:
        pass

    # -- ways to answer -----------------------------------------------------------------

    def reply(self, body: bytes, status: int = 200, kind: str = "", **headers: str) -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: object, status: int = 200) -> None:
        self.reply(json.dumps(value).encode(), status, "application/json")

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send(self, raw: bytes) -> None:
        """Raw bytes of a stream."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def event(self, value: object) -> None:
        data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self.send(f"data: {data}\n\n".encode())

    def end_stream(self) -> None:
        self.send(b"")

    def gone(self, seconds: float) -> bool:
        """Whether the client closes the connection within some seconds."""
        self.connection.settimeout(seconds)
        try:
            return self.connection.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


class Scripted(ThreadingHTTPServer):
    """`answers` by "METHOD /path"; `requests` are those that came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[Handler] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def on(self, what: str, answer: Answer) -> None:
        self.answers[what] = answer

    def last(self, what: str) -> Handler:
        method, path = what.split(" ")
        found = [r for r in self.requests if (r.command, r.path) == (method, path)]
        return found[-1]


@contextmanager
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
