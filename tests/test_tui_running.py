"""What happens to an answer, and to the questions behind it, while it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recorded_engine import Recorded
from textual.widgets import Input
from tui_driver import app_with, ask, begin, send, texts, until

from specchat.history import History, Status


async def test_changed_settings_hold_for_the_rest_of_a_running_answer() -> None:
    engine = Recorded(("One", " two", " three"))
    app = app_with(engine, view="markdown")
    async with app.run_test(size=(120, 50)) as pilot:
        screen = await begin(pilot)
        screen.use(replace(screen.settings, max_tokens=100))  # type: ignore[type-var]
        engine.hold.clear()
        await send(pilot, "q")
        await until(pilot, lambda: screen.answer is not None and bool(screen.answer.tokens))
        await pilot.press("f8")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        app.screen.query_one("#temperature", Input).value = "0.25"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: len(engine.asked) == 2)
        engine.hold.set()
        await until(pilot, lambda: not screen.busy)
        assert texts(screen) == ["q", "OneOne two three"]
        assert [s.sampling.temperature for s in engine.settings][1] == 0.25
        assert engine.settings[1].max_tokens == 99
        assert engine.continued == [False, True]
        assert engine.asked[1][-1].content == "One"
        stored = app.history.message(screen.chat.path[1].id)
        assert (stored.content, stored.status) == ("OneOne two three", Status.DONE)
        assert [r.index for r in app.history.record(stored.id).rounds] == [0, 1, 2, 3]
        assert screen.view.messages[1].view == "markdown"


async def test_escape_ends_an_answer_whose_settings_were_just_changed() -> None:
    engine = Recorded()
    app = app_with(engine)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await begin(pilot)
        engine.hold.clear()
        await send(pilot, "q")
        await until(pilot, lambda: screen.answer is not None and bool(screen.answer.tokens))
        screen.change(replace(screen.settings, rule="match"))  # type: ignore[type-var]
        screen.action_stop()
        await until(pilot, lambda: not screen.busy)
        assert len(engine.asked) == 1
        assert screen.chat.path[1].status is Status.STOPPED


async def test_what_was_not_sent_comes_back_after_a_quit(tmp_path: Path) -> None:
    engine = Recorded()
    async with app_with(engine, History(tmp_path / "h.db")).run_test() as pilot:
        screen = await begin(pilot)
        await ask(pilot, "sent")
        engine.hold.clear()
        for text in ("running", "second", "third"):
            await send(pilot, text)
        screen.prompt.load("half a thou")
        await pilot.pause()
    app = app_with(Recorded(), History(tmp_path / "h.db"))
    async with app.run_test() as pilot:
        await begin(pilot)
        await until(pilot, lambda: app.main.prompt.text == "second")
        seen = []
        for _ in range(3):
            await pilot.press("up")
            seen.append(app.main.prompt.text)
        assert seen == ["third", "half a thou", "running"]
        app.main.prompt.clear()
    async with app_with(Recorded(), History(tmp_path / "h.db")).run_test() as pilot:
        screen = await begin(pilot)
        await pilot.pause()
        assert screen.prompt.text == ""
