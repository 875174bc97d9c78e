"""The endpoint, switched on in the app: OpenAI's client, the chat and one engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from recorded_engine import Recorded
from textual.pilot import Pilot
from textual.widgets import Input
from tui_driver import SIZE, app_with, ask, begin, send, shown_by, texts, until

from specchat.engine.engine import Engine, Settings
from specchat.engine.llama import ModelOptions
from specchat.engine.sampling import SamplingParams
from specchat.errors import LoadCancelled
from specchat.history import History
from specchat.server.run import listen
from specchat.tui.app import SpecchatApp
from specchat.tui.screens.main import MainScreen
from specchat.tui.session import Session

SETTINGS = Settings(sampling=SamplingParams(temperature=0.0), max_tokens=200, draft_length=0)


@pytest.fixture
def port() -> int:
    """One that nobody listens on."""
    with listen("127.0.0.1", 0) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture
def taken() -> Iterator[int]:
    with listen("127.0.0.1", 0) as sock:
        yield int(sock.getsockname()[1])


async def switch_on(pilot: Pilot[None], port: int) -> MainScreen:
    screen = await begin(pilot)
    await pilot.press("f9")
    await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
    pilot.app.screen.query_one(Input).value = str(port)
    await pilot.press("f9")
    await until(pilot, lambda: screen.endpoint.on and not screen.changing)
    return screen


async def soon(condition: Callable[[], bool]) -> None:
    """As `until`, whose pilot waits a second each time while a model keeps the CPU busy."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def client(screen: MainScreen, key: str = "none", retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=screen.endpoint.url, api_key=key, max_retries=retries)


async def stream(client: openai.AsyncOpenAI, tokens: int) -> openai.AsyncStream:  # type: ignore[type-arg]
    return await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Tell me about the sea."}],
        stream=True, max_tokens=tokens,
    )  # fmt: skip


async def test_clients_are_answered_beside_the_chat_and_after_other_models_came(
    smollm2: Path, port: int
) -> None:
    options = ModelOptions(n_ctx=512, sequences=2, threads=1)
    go_on = threading.Event()

    def load(progress: object) -> Engine:
        return Engine.load(smollm2, options=options)

    def slowly(progress: object) -> Engine:
        assert progress("target", 0.5)  # type: ignore[operator]
        assert go_on.wait(60)
        return load(progress)

    app = SpecchatApp(Session(load, lambda: SETTINGS), History(None))
    async with app.run_test(size=SIZE) as pilot:
        screen = await switch_on(pilot, port)
        url = f"http://127.0.0.1:{port}/v1"
        await until(pilot, lambda: url in shown_by(app, "#address"))
        await pilot.press("escape")
        await send(pilot, "Write a long story about a fox.")
        await soon(lambda: screen.answer is not None and bool(screen.answer.tokens))
        chunks = [c async for c in await stream(client(screen), 5)]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert screen.busy  # so both were answered side by side

        running = await stream(client(screen), 400)
        await anext(aiter(running))
        screen.action_endpoint()
        await soon(lambda: bool(app.screen.query("#requests")))
        await soon(lambda: "1 request now, 1 done" in shown_by(app, "#requests"))
        assert "POST /v1/chat/completions" in shown_by(app, "#requests")
        assert ", endpoint :" in str(screen.query_one("#title").render())  # type: ignore[attr-defined]
        app.pop_screen()
        screen.stop()
        await soon(lambda: not screen.busy)
        assert texts(screen)[1]

        screen.session.load(slowly)
        with pytest.raises(openai.APIError, match="shutting down"):
            async for _ in running:
                pass
        await soon(lambda: screen.load_running)
        with pytest.raises(openai.InternalServerError, match="loading"):
            await stream(client(screen), 5)
        waiting = asyncio.create_task(stream(client(screen, retries=5), 5))
        go_on.set()
        chunks = [c async for c in await waiting]
        assert chunks[-1].choices[0].finish_reason == "length"
        last = await stream(client(screen), 400)
        await anext(aiter(last))
    with pytest.raises(openai.APIError, match="shutting down"):  # not a broken connection
        async for _ in last:
            pass
    assert not screen.endpoint.on


async def test_a_taken_port_and_a_wrong_one_are_told_and_the_app_lives(taken: int) -> None:
    app = app_with(Recorded())
    async with app.run_test(size=(60, 20)) as pilot:
        screen = await begin(pilot)
        await pilot.press("f9")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        for value, told in ((str(taken), f"port {taken}"), ("70000", "1 to 65535"), ("", "Type")):
            app.screen.query_one(Input).value = value
            await pilot.press("enter")
            await until(pilot, lambda told=told: told in shown_by(app, "#failure"))  # type: ignore[misc]
            assert not screen.endpoint.on
        await pilot.press("escape")
        await ask(pilot, "still there?")


async def test_the_key_is_shown_asked_for_and_a_second_f9_stops(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECCHAT_API_KEY", "sk-secret")
    app = app_with(Recorded())
    async with app.run_test(size=(60, 20)) as pilot:
        screen = await switch_on(pilot, port)
        await until(pilot, lambda: "sk-secret" in shown_by(app, "#address"))
        with pytest.raises(openai.AuthenticationError):
            await client(screen).models.list()
        await pilot.press("k")
        assert app.clipboard == "sk-secret"
        await pilot.press("c")
        assert app.clipboard == screen.endpoint.url
        await pilot.press("f9")
        await until(pilot, lambda: not screen.endpoint.on and not screen.changing)
        await pilot.pause(0.3)
        assert app.screen.query_one(Input).has_focus
        with listen("127.0.0.1", port):
            pass
        assert app.preferences.port == port


async def test_without_a_model_the_endpoint_goes_off_and_says_so(port: int) -> None:
    def cancelled(progress: object) -> Engine:
        raise LoadCancelled

    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        screen = await switch_on(pilot, port)
        await pilot.press("escape")
        screen.session.load(cancelled)
        await until(pilot, lambda: screen.no_model and not screen.endpoint.on)
        await until(pilot, lambda: any("endpoint is off" in n.message for n in app._notifications))
        await pilot.press("f9", "enter")
        await until(pilot, lambda: "No model is loaded" in shown_by(app, "#failure"))


def test_the_app_starts_without_the_server() -> None:
    late = "{'starlette', 'uvicorn', 'pydantic', 'specchat.engine.engine'}"
    code = f"import sys, specchat.tui.app; print({late} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "set()\n"
