"""The endpoint's switch: its address, its key, and what clients ask just now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from specchat.tui.kinds import counted, shown
from specchat.tui.widgets.quiet import put

if TYPE_CHECKING:
    from specchat.tui.screens.serving import ServingScreen

_NO_KEY = "none is needed (SPECCHAT_API_KEY would set one)"
_LISTED = 8  # requests


class EndpointScreen(ModalScreen[None]):
    """Shows what `main` knows of its endpoint, several times a second."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("f9", "switch", "Start or stop"),
        Binding("c", "copy('url')", "Copy the URL"),
        Binding("k", "copy('key')", "Copy the key"),
    ]

    def __init__(self, main: ServingScreen) -> None:
        super().__init__()
        self._main = main

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="endpoint"):
            yield Static(id="state", classes="dialog-title", markup=False)
            with Horizontal(classes="row", id="port"):
                yield Static("Port", classes="name", markup=False)
                yield Input(str(self._main.preferences.port), type="integer", compact=True)
            yield Static(id="failure", classes="note", markup=False)
            yield Static(id="address", markup=False)
            yield Static(id="requests", markup=False)
            yield Static(id="keys", classes="hint", markup=False)

    def on_mount(self) -> None:
        self._show()
        self.set_interval(0.25, self._show)

    def _show(self) -> None:
        main = self._main
        on = main.endpoint.on and main.changing != "starting"
        field = self.query_one("#port")
        if field.display is on:
            field.display = not on
            self.set_focus(None if on else self.query_one(Input))
        state = {"starting": "starting…", "stopping": "stopping…", "": "on" if on else "off"}
        self._put("state", f"Endpoint for OpenAI clients: {state[main.changing]}")
        self._put("failure", "" if on else shown(main.failure))
        self._put("address", self._address() if on else "")
        self._put("requests", self._requests() if on else "")
        copying = "C copies the URL" + (", K the key" if main.endpoint.key else "")
        self._put("keys", f"F9 stops, {copying}, Esc closes" if on else "F9 starts, Esc closes")

    def _put(self, id: str, text: str | Content) -> None:
        line = self.query_one(f"#{id}", Static)
        line.display = bool(text)
        put(line, Content(text) if isinstance(text, str) else text)

    def _address(self) -> Content:
        endpoint, ready = self._main.endpoint, self._main.ready
        model = ready.target if ready is not None else "loading: clients are told to try again"
        rows = (("URL", endpoint.url), ("Key", endpoint.key or _NO_KEY), ("Model", model))
        return Content("\n").join(
            Content.assemble((f"{name:<6}", "dim"), shown(value)) for name, value in rows
        )

    def _requests(self) -> Content:
        now, live = time.monotonic(), self._main.endpoint.live
        title = f"{counted(len(live), 'request')} now, {self._main.endpoint.finished:,} done"
        lines = [f"{now - r.began:6.1f} s  {shown(r.method)} {r.path}" for r in live[:_LISTED]]
        if len(live) > _LISTED:
            lines.append(f"          and {len(live) - _LISTED} more")
        return Content("\n").join([Content.styled(title, "bold"), *map(Content, lines)])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_switch()

    def action_switch(self) -> None:
        """Start or stop the endpoint."""
        if self._main.endpoint.on:
            self._main.stop_endpoint()
            return
        value = self.query_one(Input).value
        if not value.isdecimal() or not 1 <= int(value) <= 65535:
            self._main.failure = "Type a port: a number from 1 to 65535."
            self._show()
            return
        self._main.start_endpoint(int(value))
        self._show()

    def action_copy(self, what: str) -> None:
        """Copy the URL or the key."""
        endpoint = self._main.endpoint
        value = endpoint.url if what == "url" else endpoint.key
        if endpoint.on and value:
            self.app.copy_to_clipboard(value)
            self._main.tell(f"Copied the {'URL' if what == 'url' else 'key'}.")
