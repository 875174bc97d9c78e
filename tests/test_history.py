"""Stored chats: trees, undo, forks, answers with their colours, full-text search."""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from history_samples import FINISH, index_agrees, sample_round, sample_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine.events import Alternative, Kind, Rejected, Round, Token
from specchat.errors import HistoryError
from specchat.history import History, Record, Status, open_history
from specchat.history.opening import default_path
from specchat.history.records import clean, merge, pack, unpack

FILE = "history.db"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(History(tmp_path / "new folder" / FILE)) as history:
        yield history


# -- conversations and trees ------------------------------------------------------------


def test_a_conversation_comes_back_after_reopening(history: History) -> None:
    assert history.file is not None
    chat = history.create(system_prompt="Be brief.", settings={"temperature": 0.8})
    prompt = history.add_message(chat.id, None, "user", "\n  What is a  draft?\nSay it.")
    answer = history.begin_answer(chat.id, prompt.id, "big", "small", {"seed": 2**63})
    tokens = sample_tokens(["A", " small", " model"])
    history.append_answer(answer.id, tokens[:2], [sample_round(0)])
    history.append_answer(answer.id, tokens[2:], [sample_round(1)])
    history.finish_answer(answer.id, Status.DONE, FINISH)
    history.set_view(answer.id, "tokens")
    history.close()

    with closing(History(history.file)) as again:
        (found,) = again.list_conversations()
        assert found.title == "What is a draft? Say it."
        assert (found.system_prompt, found.settings) == ("Be brief.", {"temperature": 0.8})
        assert found.active_leaf == answer.id
        first, second = again.path(found.active_leaf)
        assert first == prompt
        assert (second.content, second.status, second.view) == ("A small model", "done", "tokens")
        assert (second.target, second.draft) == ("big", "small")
        assert (second.sampling, second.finish) == ({"seed": 2**63}, FINISH)
        record = again.record(answer.id)
        assert [(t.text, t.kind) for t in record.tokens] == [(t.text, t.kind) for t in tokens]
        assert record.rounds == (sample_round(0), sample_round(1))


def test_files_are_private(history: History) -> None:
    assert history.file is not None
    history.create()
    for file in history.file.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert history.file.parent.stat().st_mode & 0o077 == 0


def test_default_path_is_in_the_users_data_folder() -> None:
    assert default_path().is_relative_to(os.environ["XDG_DATA_HOME"])
    history, warning = open_history()
    history.close()
    assert (warning, history.file) == (None, default_path())


def test_list_puts_the_last_written_first(history: History) -> None:
    ids = [history.create(title=str(n)).id for n in range(3)]
    history.add_message(ids[0], None, "user", "hello")
    history.rename(ids[1], "renaming is not writing")
    assert [c.id for c in history.list_conversations()] == [ids[0], ids[2], ids[1]]
    assert [c.id for c in history.list_conversations(limit=1, offset=1)] == [ids[2]]
    assert history.conversation(ids[1]).title == "renaming is not writing"


def test_settings_of_a_conversation(history: History) -> None:
    chat = history.create()
    history.set_system_prompt(chat.id, "pirate")
    history.set_settings(chat.id, {"draft_length": None, "rule": "exact"})
    found = history.conversation(chat.id)
    assert found.system_prompt == "pirate"
    assert found.settings == {"draft_length": None, "rule": "exact"}


def test_editing_and_regenerating_make_branches(history: History) -> None:
    chat = history.create()
    old = history.add_message(chat.id, None, "user", "old")
    reply = history.add_message(chat.id, old.id, "assistant", "reply")
    again = history.add_message(chat.id, old.id, "assistant", "another reply")
    new = history.edit_message(old.id, "new")
    assert new.parent_id is None
    assert history.conversation(chat.id).active_leaf == new.id
    assert [m.id for m in history.siblings(new.id)] == [old.id, new.id]
    assert [m.id for m in history.siblings(reply.id)] == [reply.id, again.id]
    assert [m.content for m in history.path(new.id)] == ["new"]
    assert history.newest_leaf(old.id) == again.id
    history.set_active_leaf(chat.id, reply.id)
    leaf = history.conversation(chat.id).active_leaf
    assert [m.content for m in history.path(leaf)] == ["old", "reply"]


def test_deleting_a_message_takes_what_is_below_and_undo_brings_it_back(history: History) -> None:
    chat = history.create()
    root = history.add_message(chat.id, None, "user", "root")
    kept = history.add_message(chat.id, root.id, "assistant", "kept")
    gone = history.add_message(chat.id, root.id, "assistant", "gone")
    below = history.add_message(chat.id, gone.id, "user", "below")
    first = history.delete_message(below.id)
    assert history.conversation(chat.id).active_leaf == gone.id
    second = history.delete_message(gone.id)
    assert history.conversation(chat.id).active_leaf == kept.id
    assert [m.id for m in history.siblings(kept.id)] == [kept.id]
    assert history.search("gone") == []
    with pytest.raises(HistoryError, match="deleted"):
        history.add_message(chat.id, gone.id, "user", "too late")
    with pytest.raises(HistoryError, match="Undo that first"):
        history.undo_delete(first)
    history.undo_delete(second)
    assert history.conversation(chat.id).active_leaf == gone.id
    history.undo_delete(first)
    assert history.conversation(chat.id).active_leaf == below.id
    assert [m.content for m in history.path(below.id)] == ["root", "gone", "below"]
    with pytest.raises(HistoryError, match="no longer"):
        history.undo_delete(first)


def test_deleting_the_only_message_leaves_no_active_leaf(history: History) -> None:
    chat = history.create()
    message = history.add_message(chat.id, None, "user", "x")
    deletion = history.delete_message(message.id)
    assert history.conversation(chat.id).active_leaf is None
    assert history.path(None) == []
    history.undo_delete(deletion)
    assert history.conversation(chat.id).active_leaf == message.id


def test_deleting_a_conversation_and_purging(history: History) -> None:
    assert history.file is not None
    chat, other = history.create("one"), history.create("two")
    parent = None
    for n in range(1500):  # deeper than SQLite nests cascades
        parent = history.add_message(chat.id, parent, "user", f"needle {n}").id
    history.append_answer(parent, sample_tokens(["x"]))
    kept = history.add_message(other.id, None, "user", "needle")
    cut = history.add_message(other.id, None, "user", "cut")
    under = history.add_message(other.id, cut.id, "assistant", "under")
    history.delete_message(under.id)
    history.delete_message(cut.id)
    deletion = history.delete_conversation(chat.id)
    assert [c.id for c in history.list_conversations()] == [other.id]
    assert [hit.message_id for hit in history.search("needle")] == [kept.id]
    with pytest.raises(HistoryError, match="deleted"):
        history.add_message(chat.id, parent, "user", "too late")
    history.purge()  # nothing is old enough
    history.undo_delete(deletion)
    assert len(history.path(history.conversation(chat.id).active_leaf)) == 1500

    deletion = history.delete_conversation(chat.id)
    history.purge(older_than=0)
    with pytest.raises(HistoryError, match="no longer"):
        history.undo_delete(deletion)
    with pytest.raises(HistoryError, match="no longer exists"):
        history.conversation(chat.id)
    with pytest.raises(HistoryError, match="deleted"):
        history.append_answer(parent, [])
    history.close()
    with closing(sqlite3.connect(history.file)) as db:
        assert db.execute("SELECT content FROM messages").fetchall() == [("needle",)]
        for table in ("answer_chunks", "deletions"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    index_agrees(history.file)


def test_a_fork_is_a_copy_with_its_colours(history: History) -> None:
    chat = history.create("talk", "system", {"a": 1})
    prompt = history.add_message(chat.id, None, "user", "question")
    answer = history.begin_answer(chat.id, prompt.id, "t")
    history.append_answer(answer.id, sample_tokens(["an", "swer"]), [sample_round(0)])
    history.append_answer(answer.id, sample_tokens(["!"]))
    fork = history.fork(answer.id)
    assert fork.id != chat.id
    assert (fork.title, fork.system_prompt, fork.settings) == ("talk", "system", {"a": 1})
    assert fork.forked_from == chat.id
    copied = history.path(fork.active_leaf)
    assert [m.content for m in copied] == ["question", "answer!"]
    assert [m.status for m in copied] == [Status.DONE, Status.STOPPED]
    assert history.record(copied[1].id) == history.record(answer.id)
    history.add_message(fork.id, fork.active_leaf, "user", "only here")
    history.delete_conversation(fork.id)
    history.purge(older_than=0)
    assert [m.content for m in history.path(answer.id)] == ["question", "answer!"]
    assert history.message(answer.id).status is Status.PARTIAL


def test_what_is_gone_is_named(history: History) -> None:
    for call in (
        lambda: history.conversation(99),
        lambda: history.message(99),
        lambda: history.rename(99, "x"),
        lambda: history.fork(99),
        lambda: history.delete_message(99),
        lambda: history.delete_conversation(99),
        lambda: history.add_message(99, None, "user", "x"),
        lambda: history.begin_answer(99, None, "m"),
        lambda: history.resume_answer(99),
        lambda: history.finish_answer(99, Status.DONE),
        lambda: history.siblings(99),
    ):
        with pytest.raises(HistoryError, match="99"):
            call()
    one, two = history.create(), history.create()
    message = history.add_message(one.id, None, "user", "x")
    with pytest.raises(HistoryError):  # a parent in another conversation
        history.add_message(two.id, message.id, "user", "x")


# -- answers ----------------------------------------------------------------------------


def test_a_partial_answer_shows_its_text_and_is_searchable_once_finished(history: History) -> None:
    assert history.file is not None
    chat = history.create()
    answer = history.begin_answer(chat.id, None, "t")
    history.append_answer(answer.id, sample_tokens(["specu", "lat"]))
    with closing(History(history.file)) as other:
        seen = other.message(answer.id)
        assert (seen.content, seen.status) == ("speculat", Status.PARTIAL)
    history.append_answer(answer.id, sample_tokens(["ion"]))
    assert history.search("speculation") == []
    history.finish_answer(answer.id, Status.ERROR, error="out of memory")
    assert [hit.message_id for hit in history.search("speculation")] == [answer.id]
    assert history.message(answer.id).error == "out of memory"
    history.close()
    with closing(sqlite3.connect(history.file)) as db:  # compacted
        assert db.execute("SELECT seq, text FROM answer_chunks").fetchall() == [(0, "")]


def test_reasoning_can_be_split_off(history: History) -> None:
    answer = history.begin_answer(history.create().id, None, "t")
    history.append_answer(answer.id, sample_tokens(["<think>", "hm", "</think>", "yes"]))
    done = history.finish_answer(answer.id, Status.DONE, content="yes", reasoning="hm")
    assert (done.content, done.reasoning) == ("yes", "hm")
    assert len(history.record(answer.id).tokens) == 4


def test_a_stopped_answer_can_be_continued(history: History) -> None:
    answer = history.begin_answer(history.create().id, None, "t")
    history.append_answer(answer.id, sample_tokens(["one"]))
    history.finish_answer(answer.id, Status.STOPPED, FINISH)
    history.resume_answer(answer.id)
    assert history.message(answer.id).status is Status.PARTIAL
    history.append_answer(answer.id, sample_tokens([" two"]))
    assert history.message(answer.id).content == "one two"
    assert history.finish_answer(answer.id, Status.DONE).content == "one two"
    assert [t.text for t in history.record(answer.id).tokens] == ["one", " two"]


floats = st.floats(0, 1)
texts = st.text(max_size=6)
alternatives = st.lists(
    st.builds(Alternative, st.integers(0, 300_000), texts, st.floats(-1e4, 0) | st.just(-1e999)),
    max_size=3,
).map(tuple)
tokens_ = st.builds(
    Token,
    id=st.integers(-1, 300_000),
    text=texts,
    kind=st.sampled_from(Kind),
    text_kind=st.sampled_from(Kind),
    round=st.integers(-1, 10_000),
    p=st.none() | floats,
    q=st.none() | floats,
    acceptance=st.none() | floats,
    rejected=st.none() | st.builds(Rejected, st.integers(0, 300_000), texts, floats, floats),
    logprob=st.none() | st.floats(-1e4, 0),
    alternatives=alternatives,
    draft_alternatives=alternatives,
)
pieces = st.lists(st.tuples(st.integers(0, 300_000), texts), max_size=3).map(tuple)
rounds_ = st.builds(
    Round,
    *([st.integers(0, 9), texts] + [st.integers(0, 9)] * 4 + [floats] * 4),
    draft_tokens=pieces,
    rejected=pieces,
    replacement=st.none() | st.tuples(st.integers(0, 300_000), texts),
    reason=texts,
)


def rounded(value: object) -> object:
    """Floats to six significant digits, all the way down."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple):
        return tuple(map(rounded, value))
    if isinstance(value, Token | Round | Rejected | Alternative | Record):
        return replace(value, **{f: rounded(getattr(value, f)) for f in value.__slots__})
    return value


@given(st.lists(st.tuples(st.lists(tokens_, max_size=4), st.lists(rounds_, max_size=2))))
def test_records_come_back_whole_and_merged(parts: list[tuple[list[Token], list[Round]]]) -> None:
    blobs = [pack(tokens, rounds) for tokens, rounds in parts]
    whole = Record(
        tuple(t for tokens, _ in parts for t in tokens), tuple(r for _, rs in parts for r in rs)
    )
    assert unpack(merge(blobs)) == rounded(whole)
    for blob, (tokens, rounds) in zip(blobs, parts, strict=True):
        assert unpack(blob) == rounded(Record(tuple(tokens), tuple(rounds)))


@given(st.data())
def test_damaged_records_are_refused(data: st.DataObject) -> None:
    blob = bytearray(pack(sample_tokens(["a", "b"]), [sample_round(0)]))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    blob = blob[: data.draw(st.integers(0, len(blob)))]
    with pytest.raises(HistoryError):
        unpack(bytes(blob))


@pytest.mark.parametrize(
    "json", ["[]", "3", '{"format":1}', '{"format":1,"tokens":{},"rounds":[]}', '{"format":2}']
)
def test_records_of_another_shape_are_refused(json: str) -> None:

    for read in (unpack, lambda blob: merge([blob])):
        with pytest.raises(HistoryError):
            read(zlib.compress(json.encode()))


def test_a_damaged_record_costs_colours_but_not_text(history: History, tmp_path: Path) -> None:
    assert history.file is not None
    answer = history.begin_answer(history.create().id, None, "t")
    history.append_answer(answer.id, sample_tokens(["one"]))
    history.append_answer(answer.id, sample_tokens([" two"]))
    with closing(sqlite3.connect(history.file)) as db, db:
        db.execute("UPDATE answer_chunks SET record = x'00' WHERE seq = 0")
    assert history.finish_answer(answer.id, Status.DONE).content == "one two"
    with pytest.raises(HistoryError, match="its text is kept"):
        history.record(answer.id)


@given(st.text(alphabet=st.characters(), max_size=20))
def test_any_text_can_be_stored(text: str) -> None:
    stored = clean(text)
    stored.encode()
    assert len(stored) == len(text)
    assert all(a == b or b == "�" for a, b in zip(text, stored, strict=True))
    assert "\0" not in stored


# -- search -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Iterator[History]:
    with closing(History(None)) as history:
        chat = history.create("Kitchen talk")
        for text in (
            "The draft model proposes; the TARGET decides.",
            "def f(x): return 'quoted \"text\"' AND NOT NEAR(a*b)",
            "模型验证草稿。日本語の文章です。",
            "Ärger mit Überraschung",
            "C++ or C#? 100% – a_b\\c",
            "word " * 200 + "needle\nin the " + "word " * 200,
            "x \x1b[31mred\x07 \0nul \ud83d",
        ):
            history.add_message(chat.id, None, "user", text)
        yield history


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("draft", 1),
        ("DRAFT target", 1),  # both terms, whatever the case
        ("draft needle", 0),
        ("raft mod", 1),  # parts of words
        ('"draft model"', 1),
        ('"model draft"', 0),
        ('"draft mod', 1),  # while typing
        ("AND", 1),  # an operator is a word
        ("NOT NEAR(a*b)", 1),
        ("text*", 0),
        ("content:draft", 0),
        ("模型", 1),
        ("验证草稿", 1),
        ("日本", 1),
        ("語", 1),
        ("überr", 1),
        ("är", 1),
        ("c#", 1),
        ("C++ 100%", 1),
        ("a_b\\c", 1),
        ("a%b", 0),
        ("", 0),
        ("   ", 0),
        ('"', 0),
        ('""', 0),
        ('"""', 0),
        ("\0", 1),  # stored as the replacement character, and asked for as such
        ("\ud83d", 1),
        ("'; DROP TABLE messages; --", 0),
        ("x" * 100_000, 0),
        ("(a " * 5000, 1),
    ],
)
def test_search(library: History, query: str, found: int) -> None:
    assert len(library.search(query)) == found


def test_a_long_first_question_is_cut_visibly_in_the_title(library: History) -> None:
    chat = library.create()
    library.add_message(chat.id, None, "user", "word " * 40)
    title = library.conversation(chat.id).title
    assert len(title) <= 60
    assert title.endswith("word…")


def test_questions_are_recalled_once_each_the_newest_last(library: History) -> None:
    chat = library.create()
    for text in ("first", "again", "first"):
        library.add_message(chat.id, None, "user", text)
    assert library.questions()[-2:] == ["again", "first"]
    assert library.questions(limit=1) == ["first"]


def test_titles_are_found(library: History) -> None:
    (hit,) = library.search("kitchen")
    assert (hit.message_id, hit.role, hit.snippet) == (None, "title", "Kitchen talk")
    assert hit.highlights == ((0, 7),)


def test_snippets_are_one_harmless_line_with_offsets(library: History) -> None:
    (hit,) = library.search('"needle\nin"')
    assert "\n" not in hit.snippet
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert [hit.snippet[a:b] for a, b in hit.highlights] == ["needle in"]
    (hit,) = library.search("red nul")
    assert hit.snippet == "x �[31mred� �nul �"
    assert [hit.snippet[a:b] for a, b in hit.highlights] == ["red", "nul"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_no_query_breaks_the_search(library: History, query: str) -> None:
    for hit in library.search(query):
        ends = [0, *(at for pair in hit.highlights for at in pair), len(hit.snippet)]
        assert ends == sorted(ends)


@settings(max_examples=150, deadline=None)
@given(text=st.text(min_size=1, max_size=30), data=st.data())
def test_every_part_of_a_text_finds_it(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    part = text[start : data.draw(st.integers(start + 1, len(text)))]
    with closing(History(None)) as history:
        chat = history.create("title")
        message = history.add_message(chat.id, None, "user", text)
        if part.replace('"', "").strip():
            hits = history.search('"' + part.replace('"', '""') + '"' if '"' not in part else part)
            assert message.id in [hit.message_id for hit in hits]


def test_search_is_newest_first_and_limited(history: History) -> None:
    chat = history.create("t")
    ids = [history.add_message(chat.id, None, "user", f"same {n}").id for n in range(5)]
    assert [hit.message_id for hit in history.search("same", limit=3)] == ids[:1:-1]


# -- size -------------------------------------------------------------------------------


def test_a_long_conversation_opens(tmp_path: Path) -> None:
    """20,000 tokens in 40 answers; prints how long it takes to open (pytest -s)."""
    path = tmp_path / FILE
    with closing(History(path)) as history:
        chat = history.create()
        parent = None
        for n in range(40):
            parent = history.add_message(chat.id, parent, "user", f"question {n}").id
            answer = history.begin_answer(chat.id, parent, "t")
            tokens = sample_tokens([f" word{k * 7 % 501}" for k in range(500)], alternatives=True)
            for at in range(0, 500, 50):
                rounds = [sample_round(at // 5 + k) for k in range(10)]
                history.append_answer(answer.id, tokens[at : at + 50], rounds)
            parent = history.finish_answer(answer.id, Status.DONE, FINISH).id
    times = [time.perf_counter()]
    with closing(History(path)) as history:
        times.append(time.perf_counter())
        messages = history.path(history.list_conversations()[0].active_leaf)
        times.append(time.perf_counter())
        records = [history.record(m.id) for m in messages]
        times.append(time.perf_counter())
    assert sum(len(r.tokens) for r in records) == 20_000
    opened, read, unpacked = (1000 * (b - a) for a, b in pairwise(times))
    print(
        f"\n20,000 tokens: open {opened:.1f} ms, messages {read:.1f} ms, all token records "
        f"{unpacked:.1f} ms, file {path.stat().st_size / 1e6:.2f} MB"
    )
