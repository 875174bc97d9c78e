"""The app on narrow and wide screens, and finding one's way in it."""

from __future__ import annotations

import pytest
from recorded_engine import Recorded
from textual.content import Content
from textual.widgets import Footer
from textual.widgets._footer import FooterKey
from tui_driver import app_with, ask, begin, send, shown_by, until

from specchat.engine.text import strip_control
from specchat.errors import LoadCancelled
from specchat.history import History
from specchat.tui.kinds import titled
from specchat.tui.session import Session
from specchat.tui.widgets.find_line import FindLine


async def test_side_panels_open_above_a_narrow_chat_and_survive_a_resize() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=(60, 20)) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "q")
        for key, panel in (("f3", screen.panel), ("f6", screen.chats)):
            assert not panel.display
            await pilot.press(key)
            await pilot.pause()
            assert panel.region.width == 60
            assert panel.region.bottom <= screen.view.region.y
            assert screen.view.region.height >= 3
            assert screen.prompt.region.bottom < 20
        assert not screen.panel.display  # one at a time
        await pilot.resize_terminal(120, 36)
        await pilot.pause()
        assert screen.panel.display
        assert screen.chats.display
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert screen.chats.display
        await pilot.press("f6")
        await pilot.resize_terminal(90, 20)
        await pilot.pause()
        assert screen.panel.display
        assert not screen.chats.display


async def test_choosing_a_chat_on_a_narrow_screen_shows_the_chat() -> None:
    async with app_with(Recorded()).run_test(size=(60, 20)) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "first")
        await pilot.press("ctrl+n", "f6", "enter")
        await until(pilot, lambda: bool(screen.chat.path))
        assert not screen.chats.display


async def test_a_narrow_footer_keeps_the_most_needed_keys() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=(60, 20)) as pilot:
        await begin(pilot)
        await pilot.pause()
        keys = app.screen.query_one(Footer).query(FooterKey)
        seen = [k.description for k in keys if k.region.right <= 60 and k.region.width]
        assert seen[:5] == ["Stop", "New", "Help", "Inspect", "Models"]


async def test_questions_that_wait_for_a_model_say_so() -> None:
    app = app_with(Recorded())

    def fail(progress: object) -> object:
        raise LoadCancelled

    app.main.session = Session(fail, app.main.session._settings)  # type: ignore[arg-type]
    async with app.run_test(size=(60, 20)) as pilot:
        await until(pilot, lambda: app.main.no_model)
        await send(pilot, "q")
        await pilot.pause()
        assert "no model is loaded: F5 loads one" in shown_by(app, "#queue")
        app.main.session.load(lambda progress: Recorded())  # type: ignore[arg-type,return-value]
        await until(pilot, lambda: len(app.main.chat.path) == 2 and not app.main.busy)
        assert not app.main.query_one("#queue").display


async def test_finding_counts_and_goes_both_ways() -> None:
    app = app_with(Recorded(("One fox", " and a fox", ".\n")), view="markdown")
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "fox?")
        view = await ask(pilot, "Another FOX?")
        assert view.view == "markdown"
        await pilot.press("ctrl+f", *"fox")
        find = screen.query_one(FindLine)
        await until(pilot, lambda: str(find.border_title).startswith("6 found"))
        places = []
        for key in ("enter", "enter", "enter", "down", "down", "down"):
            await pilot.press(key)
            await pilot.pause()
            places.append(str(find.border_title).split(" ·")[0])
        assert places == [f"{n} of 6" for n in (6, 5, 4, 5, 6, 1)]
        await pilot.press("escape")
        assert not find.display
        assert find.value == ""
        assert view.view == "markdown"


async def test_a_long_paragraph_is_not_broken_where_its_blocks_meet() -> None:
    words = tuple(f" word{i % 97}" for i in range(600))
    app = app_with(Recorded(words))
    async with app.run_test(size=(100, 60)) as pilot:
        await begin(pilot)
        view = await ask(pilot, "q")
        for width in (100, 83):
            await pilot.resize_terminal(width, 60)
            await pilot.pause(0.2)
            blocks = list(view.query("TokenText .block"))
            assert len(blocks) > 2
            columns = blocks[0].content_size.width
            lines = Content("".join(words)).wrap(columns)
            assert sum(b.size.height for b in blocks) == len(lines)


async def test_very_long_markdown_is_shown_as_tokens_and_that_is_told() -> None:
    rows = tuple(f"- item {i}\n" for i in range(100))
    app = app_with(Recorded(rows), view="markdown")
    async with app.run_test(size=(100, 30)) as pilot:
        await begin(pilot)
        view = await ask(pilot, "q")
        assert view.view == "tokens"
        assert not view.query("Markdown")
        assert "too long for Markdown" in shown_by(app, ".assistant .who")
        await pilot.press("f4")
        assert view.view == "tokens"
        assert app.preferences.view == "markdown"


async def test_hits_are_one_short_line_each_that_shows_what_was_found() -> None:
    history = History(None)
    async with app_with(Recorded(), history).run_test(size=(120, 36)) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "```python\nprint(1)\n```\n" + "long words before it " * 9 + "needle here")
        screen.list_chats("needle")
        lines = str(screen.chats.list.get_option_at_index(0).prompt).split("\n")
        assert len(lines) == 2
        assert lines[0].startswith("print(1)")
        assert "needle" in lines[1]
        assert max(map(len, lines)) <= 24


@pytest.mark.parametrize("code", [*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_no_character_reorders_the_screen(code: int) -> None:
    assert strip_control(f"a{chr(code)}b") == "a\ufffdb"


def test_titles_have_no_marks_of_code_blocks() -> None:
    assert titled("Why?\n```c++\nint x;\n```") == "Why? int x;"
    assert titled("~~~\n`x`") == "`x`"
