"""Listening: uvicorn around the application, in the foreground or beside the terminal app."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from specchat.errors import SpecchatError
from specchat.server.entrance import Entrance
from specchat.server.errors import shutting_down

GRACE_SECONDS = 5.0  # for answers under way when the server is told to stop
CONNECTIONS = 512  # beyond these, 503


class PortError(SpecchatError):
    """The address cannot be listened on."""

    exit_code = 2


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises PortError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortError(f"Cannot listen on {host}: {error.strerror}.") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        raise PortError(f"Cannot listen on {host} port {port}: {error.strerror}.") from None
    return found


class Server(uvicorn.Server):
    """uvicorn, ending the streams that are still open when the grace is over."""

    def __init__(self, entrance: Entrance, grace: float = GRACE_SECONDS) -> None:
        config = uvicorn.Config(
            entrance,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(grace) + 5,
        )
        super().__init__(config)
        self.grace = grace
        self._entrance = entrance

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = asyncio.create_task(self._stop_jobs())
        try:
            await super().shutdown(sockets)
        finally:
            stopping.cancel()

    async def _stop_jobs(self) -> None:
        await asyncio.sleep(self.grace)
        self._entrance.end_answers(shutting_down())


class Beside:
    """A server on a thread of its own, for who has a loop of another kind to run."""

    def __init__(self, app: Starlette | Entrance, sock: socket.socket, grace: float = 1.0) -> None:
        entrance = app if isinstance(app, Entrance) else Entrance(app)
        self._server = Server(entrance, grace)
        self._thread = threading.Thread(
            target=self._run, args=(sock,), name="endpoint", daemon=True
        )
        self._thread.start()

    def _run(self, sock: socket.socket) -> None:
        with contextlib.closing(sock):
            self._server.run(sockets=[sock])

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask_to_stop(self, grace: float | None = None) -> None:
        """Begin to stop and return; `grace` replaces the one given at first."""
        if grace is not None:
            self._server.grace = grace
        self._server.should_exit = True

    def stop(self, wait: float = 10.0) -> None:
        """Finish or end what is being answered, then stop listening."""
        self.ask_to_stop()
        self._thread.join(wait)
