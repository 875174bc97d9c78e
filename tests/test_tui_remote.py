"""The app in front of servers elsewhere: what it shows, and what it does not make up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from recorded_engine import Recorded
from scripted_server import Handler, Scripted, scripted
from tui_driver import SIZE, ask, begin, send, shown_by, texts, until

from specchat.engine.engine import Settings
from specchat.errors import EndpointError
from specchat.history import History, Status
from specchat.remote import RemoteEngine
from specchat.tui.answering import Remote
from specchat.tui.app import SpecchatApp
from specchat.tui.preferences import Preferences
from specchat.tui.session import Session

CHAT = "POST /v1/chat/completions"


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as found:
        found.on("GET /v1/models", lambda r: r.json({"data": [{"id": "big"}]}))
        yield found


def piece(text: str, finish: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]} | more


def app_at(server: Scripted, settings: Callable[[], Settings] = Settings) -> SpecchatApp:
    session = Session(lambda progress: Remote(RemoteEngine(server.url)), settings)
    return SpecchatApp(session, History(None), preferences=Preferences(view="tokens"))


async def test_what_a_server_does_not_tell_is_not_made_up(server: Scripted) -> None:
    def answer(request: Handler) -> None:
        request.begin_stream()
        for text in ("Hel", "lo [b]there[/b]\x1b[2J"):
            request.event(piece(text))
        request.event(piece("", "stop"))
        request.event("[DONE]")
        request.end_stream()

    server.on(CHAT, answer)
    app = app_at(server)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "Hi")
        assert texts(screen) == ["Hi", "Hello [b]there[/b]\x1b[2J"]
        assert screen.chat.path[1].status is Status.DONE
        models = shown_by(app, "#models")
        assert "big" in models
        assert server.url.removeprefix("http://") in models
        assert "does not tell" in models
        assert "rule" not in shown_by(app, "#settings")
        figures = shown_by(app, "#figures")
        assert figures.count("unknown") == 3
        assert "not measured" in figures
        assert not screen.query_one("#live").display
        assert "tok" not in shown_by(app, ".assistant .who")
        await pilot.press("f2")
        await until(pilot, lambda: "does not say" in shown_by(app, "#token-kind"))
        await pilot.press("escape", "f7")  # no rounds to show
        await pilot.press("ctrl+g")
        await until(pilot, lambda: any("cannot go on" in n.message for n in app._notifications))
        assert screen.chat.path[1].status is Status.DONE
        await pilot.press("f9", "f9")
        await until(pilot, lambda: "clients can ask there" in shown_by(app, "#failure"))
        assert "rule" not in server.last(CHAT).body


async def test_escape_hangs_up_and_new_settings_wait_for_the_next_answer(server: Scripted) -> None:
    hung_up = threading.Event()

    def answer(request: Handler) -> None:
        request.begin_stream()
        request.event(piece("One", timings={
            "prompt_n": 5, "prompt_ms": 10.0, "predicted_n": 8, "predicted_ms": 400.0,
            "draft_n": 10, "draft_n_accepted": 4,
        }))  # fmt: skip
        if request.gone(60):
            hung_up.set()

    server.on(CHAT, answer)
    app = app_at(server)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await send(pilot, "Count")
        await until(pilot, lambda: screen.answer is not None and bool(screen.answer.tokens))
        await until(pilot, lambda: "40%" in shown_by(app, "#figures"))
        assert "20.0 tok/s" in shown_by(app, ".assistant .who")
        screen.change(replace(screen.settings, max_tokens=77))  # type: ignore[type-var]
        await pilot.pause(0.1)
        assert screen.busy
        await pilot.press("escape")
        await until(pilot, lambda: not screen.busy)
        assert hung_up.wait(20)
        assert texts(screen)[1] == "One"
        assert screen.chat.path[1].status is Status.STOPPED
        await send(pilot, "Again")
        await until(pilot, lambda: screen.answer is not None and bool(screen.answer.tokens))
        assert server.last(CHAT).body["max_tokens"] == 77
        # Quitting hangs up as well.
        hung_up.clear()
    assert hung_up.wait(20)
    assert app.history.message(screen.chat.path[-1].id).status is Status.STOPPED


async def test_the_next_question_tries_a_server_again_that_was_not_there(server: Scripted) -> None:
    running = False

    def load(progress: object) -> Remote:
        if not running:
            raise EndpointError("It cannot be reached.")
        return Remote(RemoteEngine(server.url))

    def answer(request: Handler) -> None:
        request.begin_stream()
        request.event(piece("Back", "stop"))
        request.event("[DONE]")
        request.end_stream()

    server.on(CHAT, answer)
    app = SpecchatApp(Session(load, Settings, insists=True), History(None))
    async with app.run_test(size=SIZE) as pilot:
        screen = app.main
        await until(pilot, lambda: screen.no_model)
        await send(pilot, "first")
        await until(pilot, lambda: "tries again" in shown_by(app, "#queue"))
        running = True
        await send(pilot, "second")
        await until(pilot, lambda: len(screen.chat.path) == 4 and not screen.busy)
        assert texts(screen) == ["first", "Back", "second", "Back"]


async def test_a_server_that_is_not_there_is_told_and_models_of_here_can_be_loaded() -> None:
    def refused(progress: object) -> Remote:
        raise EndpointError("127.0.0.1:9 cannot be reached.")

    app = SpecchatApp(Session(refused, Settings), History(None))
    async with app.run_test(size=SIZE) as pilot:
        screen = app.main
        await until(pilot, lambda: "cannot be reached" in shown_by(app, "#models"))
        screen.session.load(lambda progress: Recorded())  # type: ignore[arg-type,return-value]
        await begin(pilot)
        await ask(pilot, "q")
        assert "rule" in shown_by(app, "#settings")
