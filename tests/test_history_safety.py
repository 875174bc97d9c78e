"""Stored chats under threads, other processes, kill -9, other versions, damage, full disks."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from history_samples import index_agrees, sample_token, sample_tokens

from specchat.errors import HistoryDamagedError, HistoryError
from specchat.history import History, Status, open_history
from specchat.history.migrations import MIGRATIONS, Migration, migrate

FILE = "history.db"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(History(tmp_path / "new folder" / FILE)) as history:
        yield history


def python(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    """Another process that runs `code` with `arguments` as sys.argv[1:]."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)  # type: ignore[call-overload]


# -- other threads, other processes -----------------------------------------------------


def test_threads_share_one_history(history: History) -> None:
    chat = history.create()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            answer = history.begin_answer(chat.id, None, f"model {number}")
            for n in range(20):
                history.append_answer(answer.id, [sample_token(n, f" {number}.{n}")])
                assert history.message(answer.id).content.endswith(f" {number}.{n}")
            history.finish_answer(answer.id, Status.DONE)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for conversation in history.list_conversations():
            history.path(conversation.active_leaf)
    assert not failures
    assert len(history.siblings(history.newest_leaf(1))) == 4


def test_reading_does_not_wait_for_another_process_that_writes(history: History) -> None:
    assert history.file is not None
    chat = history.create("before")
    with closing(sqlite3.connect(history.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE conversations SET title = 'after'")
        assert history.conversation(chat.id).title == "before"
        other.execute("COMMIT")
    assert history.conversation(chat.id).title == "after"


WRITER = """
    import sys
    from pathlib import Path
    from history_samples import sample_tokens
    from specchat.history import History, Status
    history = History(Path(sys.argv[1]))
    history.recover()
    chat = history.create(sys.argv[2])
    parent = None
    for n in range(15):
        parent = history.add_message(chat.id, parent, "user", f"prompt {n} of {sys.argv[2]}").id
        answer = history.begin_answer(chat.id, parent, "t")
        for k in range(4):
            history.append_answer(answer.id, sample_tokens([f"{n}.{k} "]))
        history.recover()
        parent = history.finish_answer(answer.id, Status.DONE).id
    history.close()
"""


def test_processes_that_start_and_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / FILE
    processes = [python(WRITER, path, f"writer {n}") for n in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with closing(History(path)) as history:
        chats = history.list_conversations()
        assert {chat.title for chat in chats} == {"writer 0", "writer 1", "writer 2"}
        for chat in chats:
            messages = history.path(chat.active_leaf)
            assert len(messages) == 30
            assert {m.status for m in messages} == {Status.DONE}
            assert messages[-1].content == "14.0 14.1 14.2 14.3 "
    assert [p.name for p in tmp_path.iterdir()] == [FILE]
    index_agrees(path)


DYING = """
    import sys
    from itertools import count
    from pathlib import Path
    from history_samples import sample_round, sample_tokens
    from specchat.history import History
    history = History(Path(sys.argv[1]))
    chat = history.create()
    prompt = history.add_message(chat.id, None, "user", "the prompt")
    answer = history.begin_answer(chat.id, prompt.id, "t")
    print(answer.id, flush=True)
    for n in count():
        history.append_answer(answer.id, sample_tokens([f"{n}a ", f"{n}b "]), [sample_round(n)])
        if n == 5:
            print("go", flush=True)
"""


def test_a_partial_answer_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / FILE
    process = python(DYING, path)
    assert process.stdout is not None
    answer_id = int(process.stdout.readline())
    assert process.stdout.readline() == "go\n"
    with closing(History(path)) as alive:
        assert alive.recover() == []  # its process lives
        assert alive.message(answer_id).status is Status.PARTIAL
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not (recovered := alive.recover()) and time.monotonic() < deadline:
            time.sleep(0.01)  # also while it is a zombie: nobody waited for it yet
        assert recovered == [answer_id]
    process.wait(10)
    process.stdout.close()

    with closing(History(path)) as history:
        assert history.recover() == []
        prompt, answer = history.path(history.list_conversations()[0].active_leaf)
        assert prompt.content == "the prompt"
        assert answer.status is Status.STOPPED
        record = history.record(answer.id)
        count = len(record.rounds)
        assert count >= 6
        assert answer.content == "".join(f"{n}a {n}b " for n in range(count))
        assert "".join(t.text for t in record.tokens) == answer.content
        assert history.search("5a 5b")
    index_agrees(path)


def test_recovering_one_answer_leaves_a_living_one_alone(history: History) -> None:
    assert history.file is not None
    chat = history.create()
    dead, alive = (history.begin_answer(chat.id, None, "t") for _ in range(2))
    with closing(sqlite3.connect(history.file)) as db, db:
        db.execute("UPDATE messages SET owner = 'nonsense' WHERE id = ?", (dead.id,))
    assert history.recover() == [dead.id]
    assert history.message(alive.id).status is Status.PARTIAL


def test_an_answer_taken_for_dead_can_still_be_finished(history: History) -> None:
    assert history.file is not None
    answer = history.begin_answer(history.create().id, None, "t")
    history.append_answer(answer.id, sample_tokens(["one"]))
    with closing(sqlite3.connect(history.file)) as db, db:  # a pid that was given anew
        owner = db.execute("SELECT owner FROM messages").fetchone()[0]
        host, pid, started = owner.split("\n")
        db.execute("UPDATE messages SET owner = ?", (f"{host}\n{pid}\n{float(started) - 60}",))
    assert history.recover() == [answer.id]
    history.append_answer(answer.id, sample_tokens([" two"]))
    done = history.finish_answer(answer.id, Status.DONE)
    assert (done.content, done.status) == ("one two", Status.DONE)


def test_answers_of_another_host_are_left_alone(history: History) -> None:
    assert history.file is not None
    history.begin_answer(history.create().id, None, "t")
    with closing(sqlite3.connect(history.file)) as db, db:
        db.execute("UPDATE messages SET owner = 'elsewhere\n1\n1.0'")
    assert history.recover() == []


# -- versions ---------------------------------------------------------------------------

# The first characters of the SHA-256 of every published step. Never change one: append.
PUBLISHED = ("2c750c870862", "b3825c952e9d")


def digest(step: Migration) -> str:
    assert isinstance(step, tuple)
    return hashlib.sha256("\n;\n".join(step).encode()).hexdigest()[:12]


def test_published_migrations_never_change() -> None:
    assert tuple(map(digest, MIGRATIONS))[: len(PUBLISHED)] == PUBLISHED
    assert len(MIGRATIONS) == len(PUBLISHED), "write the new step's digest down"


def old_database(path: Path, version: int) -> None:
    """A database as `version` left it, with a chat in it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        migrate(db, path, MIGRATIONS[:version])
        db.execute(
            "INSERT INTO conversations (title, system_prompt, settings, created, updated, "
            "active_leaf) VALUES ('old chat', '', '{}', 1, 1, 1)"
        )
        db.execute(
            "INSERT INTO messages (conversation_id, role, content, status, created) "
            "VALUES (1, 'user', 'an old prompt', 'done', 1)"
        )


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_every_earlier_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    path = tmp_path / FILE
    old_database(path, version)
    with closing(History(path)) as history:
        assert [m.content for m in history.path(1)] == ["an old prompt"]
        assert [hit.message_id for hit in history.search("prompt")] == [1]
        history.add_message(1, 1, "assistant", "new")
    index_agrees(path)
    backups = list(tmp_path.glob("history.v*.db"))
    if version == len(MIGRATIONS):
        assert backups == []
    else:
        (backup,) = backups
        assert backup.name.startswith(f"history.v{version}-")
        assert backup.stat().st_mode & 0o077 == 0
        with closing(sqlite3.connect(backup)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (version,)
            assert db.execute("SELECT content FROM messages").fetchall() == [("an old prompt",)]


def test_processes_that_migrate_at_once(tmp_path: Path) -> None:
    path = tmp_path / FILE
    old_database(path, 1)
    processes = [python(WRITER, path, f"writer {n}") for n in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert len(list(tmp_path.glob("history.v1-*.db"))) == 1
    with closing(History(path)) as history:
        assert len(history.list_conversations()) == 4
    index_agrees(path)


def test_opening_waits_for_a_reader(tmp_path: Path) -> None:
    """The change to WAL needs the file for itself, for a moment."""
    path = tmp_path / FILE
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as reader:
        migrate(reader, path)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM conversations").fetchall()
        timer = threading.Timer(0.2, lambda: reader.execute("COMMIT"))
        timer.start()
        History(path).close()
        timer.join()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def schema(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())


def test_migrated_and_new_databases_have_the_same_schema(tmp_path: Path) -> None:
    old_database(tmp_path / "old.db", 1)
    for name in ("old.db", "new.db"):
        History(tmp_path / name).close()
    assert schema(tmp_path / "old.db") == schema(tmp_path / "new.db")


def test_a_failing_migration_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / FILE
    old_database(path, 1)
    before = schema(path)
    steps = (*MIGRATIONS, lambda db: db.execute("CREATE TABLE x (y)"), ("DROP TABLE missing",))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        with pytest.raises(sqlite3.OperationalError):
            migrate(db, path, steps)  # type: ignore[arg-type]
        assert not db.in_transaction
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert schema(path) == before


def test_no_migration_without_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / FILE
    old_database(path, 1)
    name = tmp_path / "history.v1-20250101-000000.db.part"
    monkeypatch.setattr("time.strftime", lambda _: "20250101-000000")
    name.mkdir()  # stands where the copy would go
    history, warning = open_history(path)
    assert warning is not None
    assert history.file is None
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE
    old_database(path, len(MIGRATIONS))
    newer = (*MIGRATIONS, ("CREATE TABLE future (x)",))
    with closing(History(path)) as running:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            migrate(db, path, newer)
        with pytest.raises(HistoryError, match="newer"):  # migrated under a running instance
            running.create()
        assert [m.content for m in running.path(1)] == ["an old prompt"]
    before = path.read_bytes()
    with pytest.raises(HistoryError, match=r"history\.db.*format 3.*knows 2.*update specchat"):
        History(path)
    history, warning = open_history(path)
    assert warning is not None
    assert "newer" in warning
    assert "memory" in warning
    assert history.file is None
    history.add_message(history.create().id, None, "user", "works")
    assert history.search("works")
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE music (title)")
    before = path.read_bytes()
    history, warning = open_history(path)
    assert "another program" in str(warning)
    assert history.file is None
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# -- damage and refusals ----------------------------------------------------------------


def filled(path: Path) -> bytes:
    with closing(History(path)) as history:
        chat = history.create("chat")
        for n in range(200):
            history.add_message(chat.id, None, "user", f"{n} " * 100)
    return path.read_bytes()


def damage(path: Path, how: str) -> bytes:
    whole = filled(path)
    middle = len(whole) // 2
    damaged = {
        "garbage": b"this is no database" * 100,
        "header cut": whole[:50],
        "truncated": whole[: middle + 123],
        "first page": whole[:4096],
        "page overwritten": whole[:4096] + os.urandom(65536) + whole[4096 + 65536 :],
        "zeroed": whole[:100] + bytes(len(whole) - 100),
    }[how]
    path.write_bytes(damaged)
    return damaged


@pytest.mark.parametrize(
    "how",
    ["garbage", "header cut", "truncated", "first page", "page overwritten", "zeroed"],
)
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(tmp_path: Path, how: str) -> None:
    path = tmp_path / FILE
    damaged = damage(path, how)
    with pytest.raises(HistoryDamagedError, match="damaged"):
        History(path)
    history, warning = open_history(path)
    with closing(history):
        (aside,) = tmp_path.glob("history.damaged-*.db")
        assert aside.read_bytes() == damaged
        assert warning is not None
        assert aside.name in warning
        assert str(path) in warning
        assert history.file == path
        assert history.list_conversations() == []
        history.add_message(history.create().id, None, "user", "works")
    again, warning = open_history(path)
    again.close()
    assert warning is None


def test_two_damaged_files_in_one_second_are_both_kept(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for n in range(3):
        path.write_bytes(b"garbage %d" % n * 1000)
        open_history(path)[0].close()
        path.unlink()
    assert len(list(tmp_path.glob("history.damaged-*.db"))) == 3


def test_a_file_damaged_while_in_use_gives_a_clear_error(history: History) -> None:
    assert history.file is not None
    chat = history.create()
    for n in range(300):
        history.add_message(chat.id, None, "user", f"{n} " * 200)
    history.close()
    with closing(History(history.file)) as running:
        with history.file.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(history.file.stat().st_size - 4096))
        with pytest.raises(HistoryDamagedError, match=r"history\.db is damaged"):
            running.search("299")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "file" / FILE, tmp_path / "folder.db", Path("/proc/none") / FILE):
        history, warning = open_history(path)
        with closing(history):
            assert history.file is None
            assert warning is not None
            assert str(path) in warning
            assert "memory only" in warning
            history.add_message(history.create().id, None, "user", "works")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_file(tmp_path: Path) -> None:
    path = tmp_path / FILE
    filled(path)
    path.chmod(0o444)
    history, warning = open_history(path)
    history.close()
    assert "writable" in str(warning)
    assert history.file is None


FULL = """
    import sys
    from pathlib import Path
    from specchat.history import open_history
    history, warning = open_history(Path(sys.argv[1]))
    print(history.file is None, warning)
    history.add_message(history.create().id, None, "user", "works")
"""


@pytest.mark.parametrize("limit", [0, 20_000])
def test_a_full_disk_at_start(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files makes writes fail as a full disk does."""

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = python(FULL, tmp_path / FILE, preexec_fn=fill)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.startswith("True The history")
    assert "memory only" in output


def test_a_disk_that_fills_up_loses_nothing_saved(history: History) -> None:
    chat = history.create()
    history.add_message(chat.id, None, "user", "first")
    writer = history._database._writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(HistoryError, match=r"history\.db.*full\. Free some disk space"):
        history.add_message(chat.id, None, "user", "much " * 100_000)
    writer.execute(f"PRAGMA max_page_count = {pages + 1000}")
    history.add_message(chat.id, None, "user", "second")
    assert [m.content for m in history.siblings(1)] == ["first", "second"]


def test_a_busy_history_says_so(history: History) -> None:
    assert history.file is not None
    history._database._writer.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(history.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match="busy; try again"):
            history.create()
