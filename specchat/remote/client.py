"""HTTP to one server: addresses, the key, and one clear line for everything that goes wrong."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
from httpx_sse import EventSource, SSEError

from specchat.errors import BadRequestError, EndpointError

CONNECT_SECONDS = 10.0
READ_SECONDS = 300.0  # a long prompt may take minutes before anything comes
_MOST_BYTES = 4 * 2**20  # of an answer that is not a stream
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


class StatusError(EndpointError):
    """The server answered with an HTTP error. `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def base_url(text: str) -> httpx.URL:
    """The address that paths like "/models" are added to; "/v1" where it has no path.

    Raises BadRequestError.
    """
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise BadRequestError(
            f"--endpoint {text!r} is not an address; write it like http://127.0.0.1:8080.",
            "endpoint",
        )
    if url.userinfo or url.query or url.fragment:
        raise BadRequestError(
            "The address of an endpoint must carry no user name, password or query; a key goes "
            "into an environment variable that --key-env names.",
            "endpoint",
        )
    path = url.path.rstrip("/").removesuffix("/chat/completions")
    return url.copy_with(path=path or "/v1")


def is_local(url: httpx.URL) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(url.host).is_loopback
    except ValueError:
        return url.host == "localhost"


class Client:
    """Requests to one server. Everything raises EndpointError, whose text never holds `key`."""

    def __init__(
        self, url: str, key: str | None = None, *, read_seconds: float = READ_SECONDS
    ) -> None:
        self.url = base_url(url)
        self.server = self.url.netloc.decode("ascii")
        self._key, self._read_seconds = key, read_seconds
        self.local = is_local(self.url)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(CONNECT_SECONDS, read=read_seconds),
            trust_env=not self.local,  # a proxy does not reach this machine
        )

    async def get_json(self, path: str, *, seconds: float = 2 * CONNECT_SECONDS) -> Any:
        """What is at `path`, which begins with "/"."""
        text = await self._get(self._under(path), seconds)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise self._error(
                f"answered {path} with {_excerpt(text)} instead of JSON: this is no "
                "OpenAI-compatible address."
            ) from None

    async def get_text(self, path: str, *, seconds: float = CONNECT_SECONDS) -> str:
        """What is at `path` of the server itself, outside of /v1."""
        root = self.url.path.removesuffix("/v1")
        return await self._get(self.url.copy_with(path=root + path), seconds)

    async def _get(self, url: httpx.URL, seconds: float) -> str:
        with self._problems(seconds):
            async with self._http.stream("GET", url, timeout=seconds) as response:
                return await self._good(response)

    @asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
        """Send `body` and receive the data of server-sent events; leaving closes the
        connection.
        """
        with self._problems(self._read_seconds):
            async with self._http.stream(
                "POST", self._under(path), json=body, headers={"Accept": "text/event-stream"}
            ) as response:
                if response.status_code != 200:
                    await self._good(response)
                async with aclosing(self._events(response)) as events:
                    yield events

    async def _events(self, response: httpx.Response) -> AsyncGenerator[str, None]:
        with self._problems(self._read_seconds):
            try:
                async with aclosing(EventSource(response).aiter_sse()) as events:
                    async for event in events:
                        if event.data:
                            yield event.data
            except SSEError:
                text = await self._body(response)
                raise self._error(f"did not stream but answered with {_excerpt(text)}") from None

    def _under(self, path: str) -> httpx.URL:
        return self.url.copy_with(path=self.url.path + path)

    async def _body(self, response: httpx.Response) -> str:
        received = b""
        async for piece in response.aiter_bytes():
            received += piece
            if len(received) > _MOST_BYTES:
                raise self._error("sent more than a reasonable answer holds.")
        return received.decode("utf-8", "replace")

    async def _good(self, response: httpx.Response) -> str:
        """The body. Raises StatusError for every status but 200."""
        status = response.status_code
        if status == 200:
            return await self._body(response)
        if response.is_redirect:
            target = response.headers.get("location", "elsewhere")
            raise self._error(f"sends on to {_cut(target)}; name that address.", status)
        said = _message(await self._body(response)) or response.reason_phrase
        if status in (401, 403):
            if self._key:
                raise self._error(f"refuses the key: {said}", status)
            raise self._error(
                f"wants a key: put it into an environment variable and name that with --key-env. "
                f"It said: {said}",
                status,
            )
        raise self._error(f"answered {status}: {said}", status)

    def problem(self, said: Any) -> EndpointError:
        """What the server calls an error inside a stream."""
        return self._error(f"broke off: {_message_of(said)}")

    def _error(self, what: str, status: int | None = None) -> EndpointError:
        text = f"{self.server} {what}"
        if self._key:
            text = text.replace(self._key, "•••")
        return EndpointError(text) if status is None else StatusError(text, status)

    def _problems(self, seconds: float) -> _Problems:
        return _Problems(self, seconds)

    def told(self, error: httpx.HTTPError, seconds: float) -> EndpointError:
        """One line about a connection that failed."""
        if isinstance(error, httpx.ConnectTimeout):
            what = f"cannot be reached: no connection within {CONNECT_SECONDS:.0f} seconds."
        elif isinstance(error, httpx.ReadTimeout):
            what = f"sent nothing for {seconds:.0f} seconds; gave up."
        elif isinstance(error, httpx.ConnectError):
            what = f"cannot be reached ({_cause(error)}). Does the server run, and there?"
        elif isinstance(error, httpx.DecodingError):
            what = f"sent what cannot be read ({error})."
        else:
            what = f"broke the connection ({str(error) or type(error).__name__})."
        return self._error(what)

    async def close(self) -> None:
        await self._http.aclose()


class _Problems:
    """Turns httpx's exceptions into EndpointError."""

    def __init__(self, client: Client, seconds: float) -> None:
        self._client, self._seconds = client, seconds

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.HTTPError):
            raise self._client.told(error, self._seconds) from None


def _cause(error: BaseException) -> str:
    """What the system said at the bottom of a failed connection."""
    said, below = str(error), error.__cause__ or error.__context__
    while below is not None:
        if isinstance(below, OSError) and below.errno:
            said = os.strerror(below.errno) if below.errno > 0 else below.strerror or said
        below = below.__cause__ or below.__context__
    return said


def _message(text: str) -> str:
    """What an error's body says, in one line."""
    try:
        return _message_of(json.loads(text))
    except (ValueError, RecursionError):
        return _excerpt(text) if text.strip() else ""


def _message_of(value: Any) -> str:
    """OpenAI's {"error": {"message"}}, and the shapes that others use."""
    for name in ("error", "message", "detail", "msg"):
        if isinstance(value, dict) and value.get(name):
            return _message_of(value[name])
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _excerpt(text: str) -> str:
    """A few words of a body that is not what was expected."""
    if "<html" in text[:1000].lower():
        title = _TITLE.search(text)
        return f"a web page ({_cut(title[1])})" if title else "a web page"
    return repr(_cut(text)) if text.strip() else "nothing"


def _cut(text: str, length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
