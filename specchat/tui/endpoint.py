"""The server beside the app: switched on and off, and moved along when the models change.

The server's modules are imported when it is first switched on, for they take a while.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from specchat.errors import BusyError

if TYPE_CHECKING:
    from specchat.engine.engine import Settings
    from specchat.engine.service import Service
    from specchat.server.entrance import Entrance
    from specchat.server.live import Live, LiveRequest
    from specchat.server.run import Beside

HOST = "127.0.0.1"
_GRACE = 1.0  # seconds for answers under way when it is switched off


class Endpoint:
    """`on` and the other properties may be read by any thread; the methods are called by one
    thread at a time.
    """

    def __init__(self) -> None:
        self.key = os.environ.get("SPECCHAT_API_KEY") or None
        self.port = 0
        self._defaults: Settings | None = None
        self._entrance: Entrance | None = None
        self._beside: Beside | None = None
        self._live: Live | None = None

    @property
    def on(self) -> bool:
        return self._beside is not None and self._beside.alive

    @property
    def url(self) -> str:
        """What clients take as their base URL."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def live(self) -> Sequence[LiveRequest]:
        """Requests under way, oldest first."""
        return self._live.requests() if self._live is not None else ()

    @property
    def finished(self) -> int:
        """Requests answered since the models were loaded or it was switched on."""
        return self._live.finished if self._live is not None else 0

    def start(self, service: Service, port: int, defaults: Settings) -> None:
        """Listen, with `defaults` for what requests leave open; port 0 takes a free one.

        Raises PortError, and BadRequestError for a key that cannot be one.
        """
        from specchat.server.entrance import Entrance
        from specchat.server.run import Beside, listen
        from specchat.server.security import Door

        Door(bind=HOST, key=self.key)  # it checks the key
        sock = listen(HOST, port)
        self.port, self._defaults = sock.getsockname()[1], defaults
        self._entrance = Entrance()
        self._beside = Beside(self._entrance, sock, _GRACE)
        self.serve(service)

    def pause(self) -> None:
        """The models are going: clients are told to try again shortly."""
        self._live = None
        if self._entrance is not None:
            self._entrance.app = None

    def serve(self, service: Service) -> None:
        """Answer with these models. Raises SpecchatError if they are going already."""
        from specchat.server.app import create_app
        from specchat.server.security import Door

        app = create_app(service, door=Door(bind=HOST, key=self.key), defaults=self._defaults)
        with suppress(BusyError):  # then the first answer that needs it measures
            service.call(lambda: service.engine.calibration)  # not at a client's expense
        if self._entrance is not None:
            self._live = app.state.context.metrics.live
            self._entrance.app = app

    def ask_to_stop(self) -> None:
        """End all answers, with an error that says why, and stop soon."""
        if self._beside is not None:
            self._beside.ask_to_stop(grace=0)

    def stop(self, wait: float = 10.0) -> None:
        """Let answers that are nearly done finish, end the others, and stop listening."""
        beside, self._beside = self._beside, None
        self._entrance = self._live = None
        if beside is not None:
            beside.stop(wait)
