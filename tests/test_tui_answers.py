"""Answers on the screen: where they stand, their figures, their rounds, their code."""

from __future__ import annotations

from recorded_engine import Recorded, one_round, token
from textual.widgets import OptionList
from tui_driver import SIZE, app_with, ask, begin, shown_by, texts, until

from specchat.engine.events import Kind
from specchat.history import History
from specchat.tui.kinds import looks
from specchat.tui.widgets.answer_markdown import CopyLine
from specchat.tui.widgets.rounds import drawn_round


async def test_a_short_chat_begins_at_the_top_and_stays_there() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        assert "target is ready" in shown_by(app, "#greeting")
        first = await ask(pilot, "q")
        assert not app.screen.query_one("#greeting").display
        top = screen.view.region.y
        assert screen.view.messages[0].region.y == top
        await pilot.press("f2")
        await pilot.pause()
        assert screen.view.messages[0].region.y == top
        await pilot.press("escape")
        for n in range(12):
            await ask(pilot, f"q{n}")
        await pilot.pause()
        assert first.region.y < top  # a long one follows its end
        assert screen.view.messages[-1].region.bottom <= screen.view.region.bottom


async def test_a_reopened_chat_shows_the_figures_of_its_last_answer() -> None:
    history = History(None)
    async with app_with(Recorded(("a", "b")), history).run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        assert not pilot.app.screen.query_one("#live").display
        await ask(pilot, "q")
        await pilot.press("ctrl+n")
        assert not pilot.app.screen.query_one("#live").display
        screen.open_chat(history.list_conversations()[0].id)
        await pilot.pause()
        assert "1.50 tok/call" in shown_by(pilot.app, "#figures")  # type: ignore[arg-type]
        assert "not measured" in shown_by(pilot.app, "#figures")  # type: ignore[arg-type]


async def test_the_line_above_an_answer_sums_what_was_continued() -> None:
    app = app_with(Recorded(("a", "b", "c")))
    async with app.run_test(size=SIZE) as pilot:
        await begin(pilot)
        view = await ask(pilot, "q")
        assert "3 tokens" in str(view.query_one(".who").render())  # type: ignore[attr-defined]
        await pilot.press("ctrl+g")
        await until(pilot, lambda: len(view.tokens) == 6 and not app.main.busy)
        assert "6 tokens" in str(view.query_one(".who").render())  # type: ignore[attr-defined]
        app.main.settle()
        stored = app.history.message(view.message.id).finish
        assert stored is not None
        assert stored.usage.completion_tokens == 6
        assert stored.usage.prompt_tokens == 5


async def test_every_question_can_be_recalled_in_later_chats() -> None:
    history = History(None)
    async with app_with(Recorded(), history).run_test(size=SIZE) as pilot:
        await begin(pilot)
        for text in ("one", "two", "one"):
            await ask(pilot, text)
    async with app_with(Recorded(), history).run_test(size=SIZE) as pilot:
        prompt = (await begin(pilot)).prompt
        await pilot.press("up")
        assert prompt.text == "one"
        await pilot.press("up")
        assert prompt.text == "two"
        await pilot.press("up", "down", "down")
        assert prompt.text == ""


async def test_a_click_copies_a_code_block() -> None:
    app = app_with(Recorded(("```py\none\n```\n", "and\n\n", "```\ntwo\n```\n")), view="markdown")
    async with app.run_test(size=SIZE) as pilot:
        await begin(pilot)
        view = await ask(pilot, "q")
        await until(pilot, lambda: len(view.query(CopyLine)) == 2)
        lines = list(view.query(CopyLine))
        assert "py" in str(lines[0].render())
        await pilot.click(lines[1])
        assert app.clipboard.rstrip("\n") == "two"


async def test_a_refused_draft_token_can_be_taken_after_all() -> None:
    engine = Recorded(("a", "b", "c"))
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "q")
        await pilot.press("f2")
        assert "(2)" in shown_by(app, "#token-refused")
        await pilot.press("2")
        await until(pilot, lambda: len(engine.asked) == 2 and not screen.busy)
        assert texts(screen)[1] == "ab refusedabc"


def test_a_round_shows_what_was_accepted_refused_and_added() -> None:
    coloured = looks(True)
    tokens = [token("d0"), token(" yes", Kind.RESAMPLED)]
    drawn = drawn_round(one_round(0, kept=1), tokens, coloured)
    assert drawn.plain == " d0 [× d1] [ d2] → “ yes”"
    whole = drawn_round(one_round(0, kept=3), [token("d0"), token("\n", Kind.BONUS)], coloured)
    assert whole.plain == " d0  d1  d2 + “⏎”"
    assert drawn_round(one_round(0), [token("x", Kind.PLAIN)], coloured).plain.endswith("“x”")


async def test_the_rounds_explain_the_one_under_the_cursor() -> None:
    app = app_with(Recorded(("a", "b", "c")))
    async with app.run_test(size=SIZE) as pilot:
        await begin(pilot)
        view = await ask(pilot, "q")
        await pilot.press("f2", "home", "f7")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.pause()
        assert app.screen.query_one(OptionList).highlighted == 0
        assert "drafting while it pays" in shown_by(app, ".hint")
        await pilot.press("down", "enter")
        await until(pilot, lambda: view.cursor == 1)
