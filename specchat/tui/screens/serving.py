"""Switching the endpoint on and off, and keeping it with the models that are loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from specchat.engine.worker import Worker
from specchat.errors import SpecchatError
from specchat.tui.conversation import OpenConversation
from specchat.tui.endpoint import Endpoint
from specchat.tui.messages import Loading, Prepared, Ready, Unloaded, Update
from specchat.tui.preferences import Preferences
from specchat.tui.screens.finding import FindingScreen
from specchat.tui.session import Session

if TYPE_CHECKING:
    from specchat.engine.engine import Settings
    from specchat.engine.service import Service

log = logging.getLogger(__name__)

_QUIT_SECONDS = 0.5  # that quitting waits for clients to be told


class ServingScreen(FindingScreen):
    """The chat, and the endpoint that shares its engine. `changing` says what is being done
    to the endpoint: "starting", "stopping" or ""; `failure` why it is off, if it failed.
    """

    def __init__(self, session: Session, chat: OpenConversation, preferences: Preferences) -> None:
        super().__init__(session, chat, preferences)
        self.endpoint = Endpoint()
        self.changing = self.failure = ""
        self._changes = Worker("endpoint switch")
        self._defaults: Settings | None = None  # the command line's, whatever a chat's own are
        self._named = ""

    def action_endpoint(self) -> None:
        """Start or stop the endpoint for other programs; see its address and requests."""
        from specchat.tui.screens.endpoint import EndpointScreen

        self.app.push_screen(EndpointScreen(self))

    def start_endpoint(self, port: int) -> None:
        """Start it in the background, unless it is being changed."""
        service, defaults = self.session.service, self._defaults
        if self.changing or self.endpoint.on:
            return
        if self.ready is not None and self.ready.server:
            self.failure = f"The model is at {self.ready.server}; clients can ask there."
            return
        if self.ready is None or service is None or defaults is None:
            self.failure = "No model is loaded yet, so there is nobody to answer."
            return
        work = self._change("starting", lambda: self.endpoint.start(service, port, defaults))
        self.run_worker(work)

    def stop_endpoint(self) -> None:
        """Stop it in the background, unless it is being changed."""
        if self.endpoint.on and not self.changing:
            self.run_worker(self._change("stopping", self.endpoint.stop))

    async def _change(self, what: str, work: Callable[[], None]) -> None:
        self.changing, self.failure = what, ""
        try:
            await asyncio.wrap_future(self._changes.submit(work))
        except SpecchatError as error:
            self.failure = str(error)
        except Exception as error:
            log.exception("%s the endpoint", what)
            self.failure = f"Unexpected {type(error).__name__}: {error}. Details are in the log."
        self.changing = ""
        if self.failure and self.app.screen is self:  # else the endpoint's own screen shows it
            self.warn(f"The endpoint is off. {self.failure}")
        if what == "starting" and self.endpoint.on and self.endpoint.port != self.preferences.port:
            self.preferences.port = self.endpoint.port
            self.preferences.save()

    def _apply(self, update: Update) -> None:
        super()._apply(update)
        if isinstance(update, Prepared):
            self._defaults = update.settings
        if isinstance(update, Ready):
            self.failure = ""
        if self.endpoint.on:
            self._follow(update)

    def _follow(self, update: Update) -> None:
        """Clients wait for the models that are being loaded, then get those."""
        service = self.session.service
        if isinstance(update, Loading):
            self.endpoint.pause()
        elif isinstance(update, Ready) and service is not None:
            self._changes.submit(lambda: self._serve(service))
            self.tell(f"The endpoint answers with {update.target} now.")
        elif isinstance(update, Unloaded):
            self.stop_endpoint()
            self.warn("No model is loaded, so the endpoint is off. F9 starts it again.")

    def _serve(self, service: Service) -> None:
        try:
            self.endpoint.serve(service)
        except SpecchatError as error:  # other models are on their way again
            log.info("the endpoint skips models that went: %s", error)

    def drain(self) -> None:
        """As before, and what the title says of the endpoint."""
        super().drain()
        if self.beside_name() != self._named:
            self._named = self.beside_name()
            self.show_title()

    def beside_name(self) -> str:
        if not self.endpoint.on:
            return ""
        live = len(self.endpoint.live)
        return f", endpoint :{self.endpoint.port}" + (f" ({live} live)" if live else "")

    def close(self) -> None:
        serving = self.endpoint.on
        self.endpoint.ask_to_stop()
        super().close()
        if serving:
            with suppress(TimeoutError):
                self._changes.submit(self.endpoint.stop).result(_QUIT_SECONDS)
