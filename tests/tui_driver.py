"""The app with an engine of the test's choice, driven by a pilot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from specchat.engine.engine import Settings
from specchat.history import History
from specchat.tui.app import SpecchatApp
from specchat.tui.preferences import Preferences
from specchat.tui.screens.main import MainScreen
from specchat.tui.session import Session
from specchat.tui.widgets.message import MessageView

SIZE = (120, 36)


def app_with(
    engine: object, history: History | None = None, *, view: str = "tokens", **more: object
) -> SpecchatApp:
    session = Session(lambda progress: engine, Settings)  # type: ignore[arg-type,return-value]
    preferences = Preferences(view=view)
    return SpecchatApp(session, history or History(None), preferences=preferences, **more)  # type: ignore[arg-type]


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            await pilot.pause()
            return
        await pilot.pause(0.02)
    pytest.fail("the app never got there")


async def begin(pilot: Pilot[None]) -> MainScreen:
    screen = pilot.app.main  # type: ignore[attr-defined]
    await until(pilot, lambda: screen.ready is not None)
    return screen


async def send(pilot: Pilot[None], text: str) -> None:
    screen = pilot.app.main  # type: ignore[attr-defined]
    screen.prompt.load(text)
    screen.prompt.focus()
    await pilot.press("enter")


async def ask(pilot: Pilot[None], text: str) -> MessageView:
    """Ask and wait for the whole answer."""
    screen = pilot.app.main  # type: ignore[attr-defined]
    before = len(screen.chat.path)
    await send(pilot, text)
    await until(pilot, lambda: len(screen.chat.path) == before + 2 and not screen.busy)
    await until(pilot, lambda: screen.view.messages[-1].is_mounted)
    return screen.view.messages[-1]


def texts(screen: MainScreen) -> list[str]:
    return [m.content for m in screen.chat.path]


def shown_by(app: SpecchatApp, selector: str) -> str:
    return str(app.screen.query_one(selector).render())  # type: ignore[attr-defined]
