"""The app, driven by keys. Most tests use a recorded engine: real events, replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_engine import Recorded
from textual.widgets import Input, Markdown, OptionList
from tui_driver import SIZE, app_with, ask, begin, send, shown_by, texts, until

from specchat.engine.engine import Engine, Settings
from specchat.engine.llama import ModelOptions
from specchat.engine.messages import Message
from specchat.engine.sampling import SamplingParams
from specchat.errors import ModelLoadError, PromptTooLongError
from specchat.history import History, Status
from specchat.tui.app import SpecchatApp
from specchat.tui.commands import actions
from specchat.tui.messages import Load
from specchat.tui.session import Session
from specchat.tui.widgets.inspector import Inspector

HOSTILE = (
    "[/INST] [bold]not markup[/bold] [",
    "\x1b[2J\x1b]0;title\x07\x9b31mred",
    "中文字符，全角。",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "שלום עולם مرحبا",
    "x" * 10_000,
    "\r\r\b\b\x00",
    "| a | b |\n|---|\n```\nopen fence <script> [link](javascript:x) ![i](http://x/y.png)",
)


# -- chat -----------------------------------------------------------------------------


async def test_a_question_is_answered_saved_and_the_figures_shown() -> None:
    engine, history = Recorded(), History(None)
    app = app_with(engine, history, system="Be brief.")
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        view = await ask(pilot, "Hi there")
        assert texts(screen) == ["Hi there", "Hello world.\n"]
        assert engine.asked[0] == [Message("system", "Be brief."), Message("user", "Hi there")]
        assert "tok/call" in shown_by(app, "#figures")
        assert "accepted" in shown_by(app, "#figures")
        assert "drafting while it pays" in shown_by(app, "#reason")
        assert "of 512" in shown_by(app, "#context")
        assert "17 of 512" in shown_by(app, "#context")
        assert "tok/call" in str(view.query_one(".who").render())  # type: ignore[attr-defined]
        await ask(pilot, "And again")
        assert [m.role for m in engine.asked[1]] == ["system", "user", "assistant", "user"]
        screen.settle()
        stored = history.path(screen.chat.path[-1].id)
        assert [m.status for m in stored] == [Status.DONE] * 4
        assert len(history.record(stored[-1].id).tokens) == 3


async def test_the_question_is_saved_before_the_answer_and_a_part_while_it_comes() -> None:
    engine, history = Recorded(), History(None)
    engine.hold.clear()
    app = app_with(engine, history)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await send(pilot, "q")
        await until(pilot, lambda: screen.answer is not None and screen.answer.tokens != [])
        question, answer = history.path(screen.chat.path[-1].id)
        assert question.content == "q"
        assert answer.status is Status.PARTIAL
        assert screen._recorder is not None
        screen._recorder.flush()
        screen.settle()
        assert history.message(answer.id).content == "Hello"
    assert history.message(answer.id).status is Status.STOPPED  # quitting ends it in order


async def test_escape_stops_and_what_came_is_kept() -> None:
    engine = Recorded(("one ", "two ", "three"))
    engine.hold.clear()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await send(pilot, "count")
        await until(pilot, lambda: screen.answer is not None and screen.answer.tokens != [])
        await pilot.press("escape")
        await until(pilot, lambda: not screen.busy)
        assert texts(screen)[-1] == "one "
        assert screen.chat.path[-1].status is Status.STOPPED


async def test_questions_sent_while_busy_wait_their_turn() -> None:
    engine = Recorded()
    engine.hold.clear()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        for text in ("first", "second", "third"):
            await send(pilot, text)
        await until(pilot, lambda: screen.queued == ["second", "third"])
        assert "2 waiting" in shown_by(app, "#queue")
        engine.hold.set()
        await until(pilot, lambda: len(screen.chat.path) == 6 and not screen.busy)
        assert texts(screen)[::2] == ["first", "second", "third"]


async def test_a_failed_answer_is_told_and_the_next_one_works() -> None:
    engine = Recorded()
    engine.error = PromptTooLongError(900, 512)
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await send(pilot, "long")
        await until(pilot, lambda: len(screen.chat.path) == 2 and not screen.busy)
        assert screen.chat.path[-1].status is Status.ERROR
        assert "900 tokens" in screen.chat.path[-1].error
        engine.error = None
        await ask(pilot, "short")
        assert [m.role for m in engine.asked[-1]] == ["user", "user"]


async def test_lines_recall_paste_and_the_submit_key() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        prompt = screen.prompt
        height = prompt.size.height
        await pilot.press("a", "ctrl+j", "b")
        assert prompt.text == "a\nb"
        await pilot.pause()
        assert prompt.size.height > height
        await ask(pilot, prompt.text)
        await pilot.press("x", "up")
        assert prompt.text == "a\nb"
        await pilot.press("down")
        assert prompt.text == "x"
        prompt.clear()
        from textual.events import Paste

        await prompt._on_paste(Paste("one\ntwo"))
        assert prompt.text == "one\ntwo"
        prompt.submit_key = "alt+enter"
        await pilot.press("enter")
        assert prompt.text == "one\ntwo\n"


async def test_files_are_attached_or_refused_with_a_reason(tmp_path: Path) -> None:
    engine = Recorded()
    app = app_with(engine)
    (tmp_path / "a b.py").write_text("print('```')\n")
    (tmp_path / "big.txt").write_text("x" * 300_000)
    (tmp_path / "binary").write_bytes(b"\xff\x00\xfe")
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, f"Explain\n/file '{tmp_path / 'a b.py'}'\nplease")
        assert "````py\nprint('```')\n````\nplease" in engine.asked[0][-1].content
        for name in ("big.txt", "binary", "missing"):
            await send(pilot, f"/file {tmp_path / name}")
            await pilot.pause()
            assert name in screen.prompt.text  # nothing was sent
        assert len(engine.asked) == 1


async def test_reasoning_is_folded_and_kept_apart() -> None:
    marks = ("<think>", "</think>")
    engine = Recorded((marks[0], "hm", marks[1], "\n\n", "Yes"), thinking=marks)
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        view = await ask(pilot, "q")
        message = screen.chat.path[-1]
        assert (message.reasoning, message.content) == ("hm", "Yes")
        assert not view.query_one(".thoughts").display
        view.focus()
        await pilot.press("o")
        assert view.query_one(".thoughts").display
        await ask(pilot, "again")
        assert engine.asked[1][1] == Message("assistant", "Yes", "hm")


# -- branches -------------------------------------------------------------------------


async def test_regenerating_and_editing_make_branches_to_turn_between() -> None:
    engine = Recorded()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "q")
        first = screen.chat.path[1].id
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(engine.asked) == 2 and not screen.busy)
        assert engine.asked[0] == engine.asked[1]
        second = screen.chat.path[1].id
        assert second != first
        view = screen.view.messages[1]
        assert "2/2" in str(view.query_one(".who").render())  # type: ignore[attr-defined]
        view.focus()
        await pilot.press("left")
        await pilot.pause()
        assert screen.chat.path[1].id == first
        await pilot.press("right")
        await pilot.pause()
        assert screen.chat.path[1].id == second
        await pilot.press("up", "e")
        assert screen.prompt.text == "q"
        await send(pilot, "better q")
        await until(pilot, lambda: len(engine.asked) == 3 and not screen.busy)
        assert texts(screen)[0] == "better q"
        screen.view.messages[0].focus()
        await pilot.press("left")
        await pilot.pause()
        assert texts(screen)[0] == "q"


async def test_going_on_extends_the_same_answer() -> None:
    engine = Recorded()
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "q")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: len(engine.asked) == 2 and not screen.busy)
        assert engine.continued == [False, True]
        assert engine.asked[1][-1] == Message("assistant", "Hello world.\n")
        assert texts(screen) == ["q", "Hello world.\nHello world.\n"]
        assert sorted(screen.view.messages[1].rounds) == list(range(6))
        screen.settle()
        assert len(app.history.record(screen.chat.path[1].id).tokens) == 6


async def test_deleting_undoing_and_forking() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "one")
        await ask(pilot, "two")
        screen.view.messages[2].focus()
        await pilot.press("d")
        await pilot.pause()
        assert len(screen.chat.path) == 2
        assert len(screen.view.messages) == 2
        screen.view.messages[1].focus()
        await pilot.press("u")
        await pilot.pause()
        assert texts(screen)[2] == "two"
        screen.view.messages[1].focus()
        before = screen.chat.stored
        await pilot.press("f")
        await pilot.pause()
        assert screen.chat.stored != before
        assert len(screen.chat.path) == 2
        assert len(app.history.list_conversations()) == 2


# -- inspector ------------------------------------------------------------------------


async def test_the_inspector_walks_over_tokens_and_rounds() -> None:
    app = app_with(Recorded(("a", "b", "c", "d", "e")), view="markdown")
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        view = await ask(pilot, "q")
        assert view.query_one(Markdown).display
        await pilot.press("f2", "left", "left")
        await pilot.pause()
        assert view.cursor == 2
        assert not view.query_one(Markdown).display
        assert "p target   0.5000" in shown_by(app, "#token-numbers")
        assert "acceptance 0.9000" in shown_by(app, "#token-numbers")
        assert "refused here: “ refused” (2)" in shown_by(app, "#token-refused")
        assert "1 “ other”" in shown_by(app, "#token-table")
        assert "2/3" in shown_by(app, "#token-round")
        await pilot.press("home")
        assert view.cursor == 0
        await pilot.press("n")
        assert view.cursor == 2
        await pilot.press("escape")
        await pilot.pause()
        assert view.cursor is None
        assert screen.focused is screen.prompt
        await pilot.press("f7")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        assert app.screen.query_one(OptionList).option_count == 5
        await pilot.press("home", "enter")
        await until(pilot, lambda: view.cursor == 0)


async def test_a_click_on_a_token_inspects_it() -> None:
    app = app_with(Recorded(("aaaa", "bbbb", "cccc")))
    async with app.run_test(size=SIZE) as pilot:
        await begin(pilot)
        view = await ask(pilot, "q")
        await pilot.click(view.query_one(".block"), offset=(5, 0))
        await pilot.pause()
        assert view.cursor == 1


async def test_an_alternative_begins_a_branch() -> None:
    engine = Recorded(("a", "b", "c"))
    app = app_with(engine)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "q")
        await pilot.press("f2", "left", "1")
        await until(pilot, lambda: len(engine.asked) == 2 and not screen.busy)
        assert engine.continued[-1]
        assert engine.asked[1] == [Message("user", "q"), Message("assistant", "a other")]
        assert texts(screen)[1] == "a otherabc"
        assert screen.view.messages[1].place == (2, 2)
        screen.settle()
        assert len(app.history.record(screen.chat.path[1].id).tokens) == 5


# -- history --------------------------------------------------------------------------


async def test_chats_are_listed_searched_renamed_and_reopened_with_their_colours() -> None:
    history = History(None)
    app = app_with(Recorded(("blue ", "whale")), history)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "first chat")
        await pilot.press("ctrl+n")
        assert screen.view.messages == []
        await ask(pilot, "second chat")
        await pilot.press("f6")
        await pilot.pause()
        assert screen.chats.list.option_count == 2
        await pilot.press("down", "enter")
        await until(pilot, lambda: texts(screen)[:1] == ["first chat"])
        await until(pilot, lambda: len(screen.view.messages[1].tokens) == 2)
        screen.chats.list.focus()
        await pilot.press("r")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        app.screen.query_one(Input).value = "Whales"
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert "Whales" in shown_by(app, "#title") or "Whales" in str(history.list_conversations())
        screen.action_search()
        await pilot.press(*"whale")
        await pilot.pause()
        assert screen.chats.list.option_count >= 2
        await pilot.press("enter")
        count = len(history.list_conversations())
        await pilot.press("d")
        await pilot.pause()
        assert len(history.list_conversations()) == count - 1
        await pilot.press("u")
        await pilot.pause()
        assert len(history.list_conversations()) == count


async def test_a_long_chat_mounts_its_newest_messages_first() -> None:
    history = History(None)
    chat, parent = history.create(), None
    for n in range(40):
        parent = history.add_message(chat.id, parent, "user", f"message {n} " + "word " * 40).id
    app = app_with(Recorded(), history)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        screen.open_chat(chat.id)
        await pilot.pause()
        assert len(screen.view.messages) == 10
        assert screen.view.messages[-1].text.startswith("message 39")
        await pilot.press("ctrl+home")
        await until(pilot, lambda: len(screen.view.messages) == 20)
        await pilot.press("ctrl+f", *"message 3 ", "enter")
        await until(pilot, lambda: len(screen.view.messages) == 40)
        await pilot.press("escape")
        assert screen.focused is screen.prompt


async def test_export_writes_each_format_once(tmp_path: Path) -> None:
    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        await begin(pilot)
        await ask(pilot, "q")
        for name in ("a.md", "a.json", "a.html", "a.md", "a.exe"):
            await pilot.press("ctrl+s")
            await until(pilot, lambda: len(app.screen_stack) == 2)
            app.screen.query_one(Input).value = str(tmp_path / name)
            await pilot.press("enter")
            await until(pilot, lambda: len(app.screen_stack) == 1)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.json", "a.md"]
        assert "Hello world." in (tmp_path / "a.md").read_text()
        assert json.loads((tmp_path / "a.json").read_text())["messages"][1]["tokens"]
        assert 'class="resampled"' in (tmp_path / "a.html").read_text()


# -- settings, models, the rest -------------------------------------------------------


async def test_settings_hold_from_the_next_answer_on() -> None:
    engine = Recorded()
    app = app_with(engine)
    async with app.run_test(size=(120, 50)) as pilot:
        await begin(pilot)
        await ask(pilot, "q")
        await pilot.press("f8")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        app.screen.query_one("#temperature", Input).value = "-3"
        await pilot.press("ctrl+s")
        assert "temperature" in shown_by(app, "#problem")
        app.screen.query_one("#temperature", Input).value = "0.25"
        app.screen.query_one("#draft_length").value = "5"  # type: ignore[attr-defined]
        app.screen.query_one("#rule").value = "match"  # type: ignore[attr-defined]
        app.screen.query_one("#system").text = "Rhyme."  # type: ignore[attr-defined]
        await pilot.press("ctrl+s")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await ask(pilot, "again")
        used = engine.settings[-1]
        assert (used.sampling.temperature, used.draft_length, used.rule) == (0.25, 5, "match")
        assert used.logprobs == 5
        assert engine.asked[-1][0] == Message("system", "Rhyme.")
        stored = app.history.list_conversations()[0]
        assert stored.settings["draft_length"] == 5
        assert stored.system_prompt == "Rhyme."


async def test_models_are_listed_paired_switched_and_failures_survived(smollm2: Path) -> None:
    first, second = Recorded(), Recorded(("second",))
    chosen = []

    def loader(target: Path, draft: Path | None) -> Load:
        chosen.append((target, draft))
        return lambda progress: second  # type: ignore[arg-type,return-value]

    app = app_with(first, loader=loader, models=[smollm2])
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await pilot.press("f5")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count == 1)
        assert "135M parameters" in str(options.get_option_at_index(0).prompt)
        await pilot.press("enter")
        await until(pilot, lambda: "lookup" in str(options.get_option_at_index(0).prompt))
        await pilot.press("enter")
        await until(pilot, lambda: screen.ready is not None and first.closed)
        assert chosen == [(smollm2.resolve(), None)]
        await ask(pilot, "q")
        assert texts(screen)[-1] == "second"


async def test_a_failed_load_leaves_the_app_alive_and_the_question_saved() -> None:
    def fail(progress: object) -> Engine:
        raise ModelLoadError("Cannot load x.gguf: [broken]")

    app = SpecchatApp(Session(fail, Settings), History(None))
    async with app.run_test(size=SIZE) as pilot:
        screen = app.main
        await until(pilot, lambda: "broken" in shown_by(app, "#models"))
        await send(pilot, "anybody?")
        await pilot.pause()
        assert screen.waiting
        assert app.history.list_conversations()[0].title == "anybody?"


async def test_loading_shows_progress_and_can_be_cancelled() -> None:
    import time

    from specchat.errors import LoadCancelled

    def load(progress: Callable[[str, float], bool]) -> Engine:
        while progress("target", 0.25):
            time.sleep(0.01)
        raise LoadCancelled("cancelled")

    app = SpecchatApp(Session(load, Settings), History(None))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "25%" in shown_by(app, "#models"))
        await pilot.press("escape")
        await until(pilot, lambda: "No model" in shown_by(app, "#models"))


async def test_every_action_exists_and_help_names_the_keys() -> None:
    app = app_with(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "q")
        names = [action.partition("(")[0] for _, action, _ in actions()]
        assert len(names) > 25
        assert all(hasattr(screen, f"action_{name}") for name in names)
        await pilot.press("f1")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("escape")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press(*"fork")
        await pilot.pause(0.3)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.history.list_conversations()) == 2)


async def test_copying_goes_through_the_code_blocks_one_by_one() -> None:
    app = app_with(Recorded(("```py\none\n```\n", "and\n\n", "```\ntwo\n```\n")))
    async with app.run_test(size=SIZE) as pilot:
        await begin(pilot)
        await ask(pilot, "q")
        copied = []
        for _ in range(3):
            await pilot.press("ctrl+o")
            copied.append(app.clipboard)
        assert copied == ["one", "two", "one"]


async def test_the_view_of_answers_is_toggled_and_remembered() -> None:
    app = app_with(Recorded(("# Big\n", "text")), view="markdown")
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        view = await ask(pilot, "q")
        assert view.view == "markdown"
        await pilot.press("f4")
        assert view.view == "tokens"
        assert view.query(".tokens")[1].display
        again = await ask(pilot, "again")
        assert again.view == "tokens"
        assert app.history.message(screen.chat.path[1].id).view == "tokens"


@pytest.mark.parametrize("size", [(60, 20), (40, 12), (200, 60)])
async def test_every_size_keeps_the_input_usable(size: tuple[int, int]) -> None:
    app = app_with(Recorded())
    async with app.run_test(size=size) as pilot:
        screen = await begin(pilot)
        await ask(pilot, "q")
        assert screen.panel.display == (size[0] >= 84)
        assert screen.prompt.region.height >= 2
        assert screen.prompt.region.bottom <= size[1]
        await pilot.press("f2")
        await pilot.pause()
        assert screen.query_one(Inspector).display
        assert screen.view.region.height >= 1


@pytest.mark.parametrize("view", ["tokens", "markdown"])
async def test_hostile_text_is_shown_as_data(view: str) -> None:
    app = app_with(Recorded(HOSTILE), view=view)
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        for text in HOSTILE:
            await ask(pilot, text)
        screen.list_chats("x")
        svg = app.export_screenshot()
        assert not any(c in svg for c in "\x1b\x07\x9b\x00\b")
        await pilot.press("f2", "left", "left", "left", "home")
        await pilot.press("escape", "f7")
        await pilot.pause()
        await pilot.press("escape")
        for theme in ("ansi-dark", "textual-light"):
            app.theme = theme
            await pilot.pause()


async def test_without_colour_every_kind_still_looks_different(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_with(Recorded())
    async with app.run_test(size=SIZE):
        styles = list(app.looks.kinds.values())
        assert all(style.foreground is None for style in styles)
        assert len(set(styles)) == 4


async def test_a_long_answer_is_split_into_frozen_blocks() -> None:
    app = app_with(Recorded(tuple(f"word{i}" + ("\n" if i % 10 == 9 else " ") for i in range(500))))
    async with app.run_test(size=SIZE) as pilot:
        await begin(pilot)
        view = await ask(pilot, "long")
        assert len(view.query(".block")) >= 6
        assert view.text.count("word") == 500


async def test_the_real_engine_answers_in_the_app(smollm2: Path) -> None:
    settings = Settings(sampling=SamplingParams(temperature=0.0), max_tokens=12, draft_length=2)
    options = ModelOptions(n_ctx=512, threads=1)
    session = Session(lambda p: Engine.load(smollm2, options=options), lambda: settings)
    app = SpecchatApp(session, History(None))
    async with app.run_test(size=SIZE) as pilot:
        screen = await begin(pilot)
        view = await ask(pilot, "Name three colours.")
        assert len(view.tokens) == 12
        assert len(view.tokens[0].alternatives) == 5
        assert screen.depths is not None
        assert screen.depths.target == screen.stats.finish.usage.prompt_tokens + 11  # type: ignore[union-attr]
        await pilot.press("f2", "left", "left", "1")
        await until(pilot, lambda: not screen.busy and screen.view.messages[-1].place == (2, 2))
        assert screen.chat.path[-1].status is Status.DONE
