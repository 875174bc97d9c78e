"""A server that speaks the Hub's protocol: repositories, redirects to a CDN, ranges, refusals.

As on the Hub, asking for a large file redirects to another host (here `localhost` instead of
`127.0.0.1`), and the redirect carries commit, size and SHA-256. How it behaves can be changed
per file; every request is kept.
"""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class File:
    """A file as the Hub announces it (`data`), and how it is sent.

    `error` is (status, X-Error-Code, X-Error-Message) on every request; `cuts` are lengths
    after which answers end too early, one per answer; `sent` is what is sent instead of `data`;
    `stall` is set when an answer was cut, whose connection is then held open until `release`.
    """

    data: bytes
    error: tuple[int, str, str] | None = None
    cuts: list[int] = field(default_factory=list)
    sent: bytes | None = None
    stall: threading.Event | None = None
    ranges: bool = True
    small: bool = False  # kept in Git: no SHA-256
    busy: int = 0  # so many answers are 503


class HubServer:
    def __init__(self):
        self.files: dict[tuple[str, str], File] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._done = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args):
                pass

            def do_HEAD(self):
                hub._answer(self)

            def do_GET(self):
                hub._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._done.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self):
        return self._server.server_address[1]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def release(self):
        """Let stalled answers end."""
        self._done.set()

    def fetched(self, name):
        """The headers of every request for the bytes of `name`."""
        return [h for method, path, h in self.requests if method == "GET" and path.endswith(name)
                and path.startswith("/cdn/")]  # fmt: skip

    def _answer(self, request):
        path = unquote(request.path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.command, path, headers))
        if path.startswith("/api/models/"):
            repo = "/".join(path.split("/")[3:5])
            names = [name for owner, name in self.files if owner == repo]
            return self._json(
                request, [{"type": "file", "path": n, "size": 1, "oid": "0"} for n in names]
            )
        cdn = path.startswith("/cdn/")
        owner, repo, *rest = path.removeprefix("/cdn").strip("/").split("/")
        name = "/".join(rest[2:])
        if not any(known == f"{owner}/{repo}" for known, _ in self.files):
            return self._refuse(request, 404, "RepoNotFound", "")
        file = self.files.get((f"{owner}/{repo}", name))
        if file is None:
            return self._refuse(request, 404, "EntryNotFound", "")
        if file.error:
            return self._refuse(request, *file.error)
        if file.busy:
            file.busy -= 1
            return self._refuse(request, 503, "", "")
        if cdn or (file.small and request.command == "GET"):
            return self._send(request, file, headers.get("range"))
        request.send_response(200 if file.small else 302)
        request.send_header("X-Repo-Commit", COMMIT)
        if file.small:
            request.send_header("ETag", '"0123456789abcdef0123456789abcdef01234567"')
            request.send_header("Content-Length", str(len(file.data)))
        else:
            request.send_header("X-Linked-Etag", f'"{hashlib.sha256(file.data).hexdigest()}"')
            request.send_header("X-Linked-Size", str(len(file.data)))
            request.send_header("Location", f"http://localhost:{self.port}/cdn{request.path}")
            request.send_header("Content-Length", "0")
        request.end_headers()

    def _send(self, request, file, wanted):
        data = file.data if file.sent is None else file.sent
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and file.ranges else 0
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        if file.cuts:
            request.wfile.write(data[start : start + file.cuts.pop(0)])
            request.wfile.flush()
            request.close_connection = True
            if file.stall is not None:
                file.stall.set()
                self._done.wait()
        else:
            request.wfile.write(data[start:])

    def _refuse(self, request, status, code, message):
        request.send_response(status)
        for name, value in (("X-Error-Code", code), ("X-Error-Message", message)):
            if value:
                request.send_header(name, value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _json(self, request, value):
        body = json.dumps(value).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
