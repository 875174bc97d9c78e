"""The app, driven by keys. Most tests use a recorded engine: real events, replayed."""

from __future__ import annotations

import os
import pty
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.pilot import Pilot

from specchat.engine.engine import Cancel, Engine, Settings
from specchat.engine.events import Event, Finish, FinishReason, Kind, Round, Token, Usage
from specchat.engine.llama import ModelOptions
from specchat.engine.messages import Message
from specchat.engine.sampling import SamplingParams
from specchat.engine.stats import Stats
from specchat.errors import ModelLoadError
from specchat.tui.app import SpecchatApp
from specchat.tui.message_view import MessageView
from specchat.tui.panel import Panel
from specchat.tui.prompt import Prompt
from specchat.tui.session import Session

SIZE = (100, 30)
HOSTILE = (
    "[/INST] [bold]not markup[/bold] [",
    "\x1b[2J\x1b]0;title\x07\x9b31mred",
    "中文字符，全角。",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "שלום עולם مرحبا",
    "x" * 10_000,
    "\r\r\b\b\x00",
)


def token(text: str, kind: Kind = Kind.ACCEPTED, round_: int = 0) -> Token:
    return Token(7, text, kind, kind, round_, 0.5, 0.4, 0.9)


def one_round(index: int, kept: int) -> Round:
    drafted = tuple((i, f"d{i}") for i in range(kept))
    return Round(index, "draft", kept, kept, kept + 1, index * 4, 0.01, 0.03, 0.001, 0.041,
                 drafted, (), None, "drafting while it pays")  # fmt: skip


class Recorded:
    """Stands where an Engine does and replays events; `hold` keeps an answer running."""

    def __init__(self, texts: tuple[str, ...] = ("Hello", " world", ".\n")) -> None:
        self.texts = texts
        self.asked: list[list[Message]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.target = SimpleNamespace(path=Path("target.gguf"), n_ctx=512)
        self.draft = None
        self.refusal = ""

    def chat(self, messages: list[Message], settings: Settings, cancel: Cancel) -> Iterator[Event]:
        self.asked.append(list(messages))
        return self._events(cancel)

    def _events(self, cancel: Cancel) -> Iterator[Event]:
        kinds = list(Kind)
        for i, text in enumerate(self.texts):
            yield token(text, kinds[i % len(kinds)], i)
            yield one_round(i, 3)
            while not self.hold.is_set() and not cancel.is_set():
                time.sleep(0.005)
            if cancel.is_set():
                break
        reason = FinishReason.CANCELLED if cancel.is_set() else FinishReason.STOP
        yield Finish(reason, Usage(prompt_tokens=5, completion_tokens=3), 0.1, 0.2)

    def stats(self) -> Stats:
        return Stats(lambda depth: 0.04)

    def close(self) -> None:
        pass


def app_with(engine: object) -> SpecchatApp:
    return SpecchatApp(Session(lambda progress: engine), Settings())  # type: ignore[arg-type,return-value]


async def until(pilot: Pilot, condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        await pilot.pause(0.02)
    pytest.fail("the app never got there")


async def ask(pilot: Pilot, text: str) -> None:
    app = pilot.app
    app.query_one(Prompt).text = text
    app.query_one(Prompt).focus()
    await pilot.press("enter")


def views(app: SpecchatApp) -> list[MessageView]:
    return list(app.query(MessageView))


async def test_a_question_is_answered_and_the_figures_shown() -> None:
    engine = Recorded()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        await ask(pilot, "Hi there")
        await until(pilot, lambda: len(app.messages) == 2)
        assert [v.text for v in views(app)] == ["Hi there", "Hello world.\n"]
        assert engine.asked[0][-1] == Message("user", "Hi there")
        shown = str(app.query_one("#figures").render())
        assert "tok/call" in shown
        assert "100% acceptance" in shown
        assert "context" in shown
        await ask(pilot, "And again")
        await until(pilot, lambda: len(app.messages) == 4)
        assert [m.role for m in engine.asked[1]] == ["user", "assistant", "user"]


async def test_escape_stops_and_what_came_is_kept() -> None:
    engine = Recorded(("one ", "two ", "three"))
    engine.hold.clear()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        await ask(pilot, "count")
        await until(pilot, lambda: len(views(app)) == 2 and views(app)[1].tokens != [])
        await pilot.press("escape")
        await until(pilot, lambda: not app.busy)
        assert app.messages[-1] == Message("assistant", "one ")


async def test_a_prompt_sent_while_busy_waits_its_turn() -> None:
    engine = Recorded()
    engine.hold.clear()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        await ask(pilot, "first")
        await ask(pilot, "second")
        await until(pilot, lambda: app.queued == ["second"])
        engine.hold.set()
        await until(pilot, lambda: len(app.messages) == 4)
        assert [m.content for m in app.messages if m.role == "user"] == ["first", "second"]


async def test_regenerate_and_new_chat() -> None:
    engine = Recorded()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        await ask(pilot, "q")
        await until(pilot, lambda: len(app.messages) == 2)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asked) == 2 and not app.busy)
        assert engine.asked[0] == engine.asked[1]
        assert len(views(app)) == 2
        await pilot.press("ctrl+n")
        await until(pilot, lambda: views(app) == [])
        assert app.messages == []


async def test_the_inspector_walks_over_tokens() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        await ask(pilot, "q")
        await until(pilot, lambda: len(app.messages) == 2)
        await pilot.press("f2", "left")
        await pilot.pause()
        view = views(app)[1]
        assert view.cursor == len(view.tokens) - 2
        shown = str(app.query_one("#token").render())
        assert "p(target) 0.500" in shown
        assert "acceptance probability 0.900" in shown
        assert "3 of 3 kept" in shown
        await pilot.press("escape")
        await pilot.pause()
        assert view.cursor is None
        assert app.focused is app.query_one(Prompt)


async def test_lines_history_and_panel_keys() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        prompt = app.query_one(Prompt)
        await pilot.press("a", "ctrl+j", "b")
        assert prompt.text == "a\nb"
        await pilot.press("enter")
        await until(pilot, lambda: len(app.messages) == 2)
        await pilot.press("up")
        assert prompt.text == "a\nb"
        await pilot.press("down")
        assert prompt.text == ""
        panel = app.query_one(Panel)
        await pilot.press("f3")
        assert panel.has_class("hidden")
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert panel.has_class("hidden")
        assert prompt.region.height >= 1


async def test_hostile_text_is_shown_as_data() -> None:
    app = app_with(Recorded(HOSTILE))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        for text in HOSTILE:
            await ask(pilot, text)
        await until(pilot, lambda: len(app.messages) == 2 * len(HOSTILE))
        screen = app.export_screenshot()
        assert "\x1b" not in screen
        assert "\x07" not in screen
        await pilot.press("f2", "left", "left", "left")
        await pilot.pause()


async def test_a_long_answer_is_split_into_frozen_blocks() -> None:
    app = app_with(Recorded(tuple(f"word{i}" + ("\n" if i % 10 == 9 else " ") for i in range(500))))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        await ask(pilot, "long")
        await until(pilot, lambda: len(app.messages) == 2)
        view = views(app)[1]
        assert len(view.query(".block")) >= 6
        assert view.text.count("word") == 500


async def test_a_failed_load_leaves_the_app_alive() -> None:
    def fail(progress: object) -> Engine:
        raise ModelLoadError("Cannot load x.gguf: [broken]")

    app = SpecchatApp(Session(fail), Settings())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "broken" in str(app.query_one("#figures").render()))
        await ask(pilot, "anybody?")
        await pilot.pause()
        assert app.queued == ["anybody?"]


async def test_the_real_engine_answers_in_the_app(smollm2: Path) -> None:
    settings = Settings(sampling=SamplingParams(temperature=0.0), max_tokens=12, draft_length=2)
    options = ModelOptions(n_ctx=512, threads=1)
    app = SpecchatApp(Session(lambda p: Engine.load(smollm2, options=options)), settings)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.ready)
        await ask(pilot, "Name three colours.")
        await until(pilot, lambda: len(app.messages) == 2)
        assert len(views(app)[1].tokens) == 12
        assert app.stats is not None
        assert app.stats.finish is not None


def test_in_a_real_terminal_from_start_to_quit() -> None:
    leader, follower = pty.openpty()
    import fcntl
    import struct
    import subprocess
    import termios

    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "specchat", "-n", "8", "--threads", "1", "--ctx", "512"],
        stdin=follower, stdout=follower, stderr=follower,
        env=os.environ | {"TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(follower)
    received = b""

    def read_until(wanted: bytes, seconds: float) -> None:
        nonlocal received
        end = time.monotonic() + seconds
        while wanted not in received and time.monotonic() < end:
            if select.select([leader], [], [], 0.2)[0]:
                received += os.read(leader, 65536)
        assert wanted in received, received[-2000:]

    try:
        read_until(b"Ask something", 60)
        os.write(leader, b"Say hello.\r")
        read_until(b"ended:", 60)
        os.write(leader, b"\x11")  # ctrl+q
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    received += os.read(leader, 65536)
                except OSError:  # Linux says EIO once the other side has closed
                    break
        assert process.wait(timeout=20) == 0
        assert b"Traceback" not in received
    finally:
        process.kill()
        os.close(leader)
