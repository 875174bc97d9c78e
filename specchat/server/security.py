"""The door: who may talk to the server, checked before any route runs.

A web page anywhere can make a browser send requests to localhost. So the Host must be a
name of this server (else a rebound DNS name could reach it), a browser's Origin must be
this server's own or a listed one, and bodies must be JSON, which a page cannot send
elsewhere without asking first.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specchat.errors import BadRequestError
from specchat.server.errors import ApiError
from specchat.server.metrics import Metrics

OPEN_PATHS = ("/health",)  # need no key: they tell nothing
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/\s]+))(?::(?P<port>\d{1,5}))?")

log = logging.getLogger("specchat.server")


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or address, without brackets) is this machine's own."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and (
        address.is_loopback
        or (isinstance(address, ipaddress.IPv6Address) and _mapped_loopback(address))
    )


def _mapped_loopback(address: ipaddress.IPv6Address) -> bool:
    return address.ipv4_mapped is not None and address.ipv4_mapped.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def host_of(value: str) -> str | None:
    """The host of a Host header, in lower case, without port, brackets and the root's dot."""
    match = _HOST.fullmatch(value)
    if not match or int(match["port"] or 0) > 65535:
        return None
    return (match["v6"] or match["name"]).lower().removesuffix(".") or None


@dataclass(frozen=True, slots=True)
class Door:
    """`bind` is the address listened on, `key` the secret that clients must show. `hosts`
    are further names of this server, `origins` web pages that may use it.
    """

    bind: str = "127.0.0.1"
    key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises BadRequestError for a server that anyone on the network could use."""
        if not is_loopback(self.bind.lower()) and not self.key:
            raise BadRequestError(
                f"Listening on {self.bind} lets other machines in, so it needs a key: "
                "set SPECCHAT_API_KEY or use --api-key-file.",
                "host",
            )
        if self.key is not None and not (self.key.strip() and self.key.isascii()):
            raise BadRequestError("The API key must be visible ASCII characters.", "api_key")

    def check(self, scope: Scope) -> None:
        """Raises ApiError for a request that may not come in."""
        headers = Headers(scope=scope)
        host = host_of(headers.get("host", ""))
        if len(headers.getlist("host")) != 1 or host is None or not self._is_mine(host):
            raise ApiError(
                403,
                "This Host is not one of this server's names; see --allow-host.",
                code="forbidden_host",
            )
        for origin in headers.getlist("origin"):
            if not self._is_allowed(origin, headers.get("host", "")):
                raise ApiError(
                    403,
                    "Web pages of this Origin may not use the server; see --allow-origin.",
                    code="forbidden_origin",
                )
        if self.key is not None and scope["path"] not in OPEN_PATHS:
            self._check_key(headers)
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise ApiError(415, "Send JSON with Content-Type: application/json.")

    def _is_mine(self, host: str) -> bool:
        if is_loopback(host) or host == self.bind.lower() or host in self.hosts:
            return True
        # Listening for other machines, by address; a name could have been rebound.
        return not is_loopback(self.bind.lower()) and _address(host) is not None

    def _is_allowed(self, origin: str, host: str) -> bool:
        if origin in self.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()

    def _check_key(self, headers: Headers) -> None:
        assert self.key is not None
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            shown = headers.get("x-api-key", "")
        # Digests have one length, so the time tells nothing, not even the key's length.
        given, wanted = (sha256(k.strip().encode()).digest() for k in (shown, self.key))
        if not hmac.compare_digest(given, wanted):
            raise ApiError(
                401,
                "The API key is missing or wrong. Send it as Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


class Guard:
    """ASGI middleware: lets in what the door allows, names every request, counts it.

    Logs method, path, status and time; never a body, a query or a header.
    """

    def __init__(self, app: ASGIApp, door: Door, metrics: Metrics, paths: Iterable[str]) -> None:
        self._app, self._door, self._metrics = app, door, metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: there are none
            await send({"type": "websocket.close", "code": 1008})
            return
        start = time.perf_counter()
        asked = Headers(scope=scope).get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else f"req_{uuid.uuid4().hex}"
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["x-content-type-options"] = "nosniff"
                headers.setdefault("cache-control", "no-store")
            await send(message)

        path = scope["path"] if scope["path"] in self._paths else "other"
        try:
            with self._metrics.live.during(scope["method"], path):
                try:
                    self._door.check(scope)
                except ApiError as error:
                    response = JSONResponse(error.body, error.status, error.headers)
                    await response(scope, receive, answer)
                else:
                    await self._app(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - start
            self._metrics.requested(scope["method"], path, status, seconds)
            log.info("%s %s %s %d %.3fs", request_id, scope["method"], path, status, seconds)
