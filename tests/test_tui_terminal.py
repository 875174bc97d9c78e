"""The whole program in a real pseudo-terminal, with the real model."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from scripted_server import Handler, scripted

from specchat.history import History, Message, Status

READY = b"lookup only"
LONG = "Write a long story about a fox and a lighthouse."  # greedily, some 500 tokens


class Terminal:
    """specchat in a terminal of its own, with a home of its own."""

    def __init__(
        self, home: Path, *flags: str, model: Sequence[str] = ("--threads", "1", "--ctx", "2048")
    ) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        folders = {f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "CONFIG", "STATE")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specchat", *model, *flags],
            stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
            env=os.environ | folders | {"TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(follower)
        self.received = b""
        self._closed = False

    def read_until(self, done: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            if select.select([self._leader], [], [], 0.1)[0]:
                try:
                    self.received += os.read(self._leader, 65536)
                except OSError:  # Linux says EIO once the other side has closed
                    self._closed = True
                    break
        assert done(), self.received[-3000:]

    def see(self, wanted: bytes) -> None:
        self.read_until(lambda: wanted in self.received)

    def type(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def ended(self, seconds: float) -> int:
        """The exit code; everything still written is read."""
        self.read_until(lambda: self._closed or self.process.poll() is not None, seconds)
        assert b"Traceback" not in self.received
        return self.process.wait(seconds)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._leader)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened = []

    def start(*flags: str) -> Terminal:
        opened.append(Terminal(tmp_path, *flags))
        opened[-1].see(READY)
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def stored(home: Path, recover: bool = False) -> list[Message]:
    """The messages of the newest chat."""
    file = home / "DATA" / "specchat" / "history.db"
    if not file.exists():
        return []
    history = History(file)
    try:
        if recover:
            history.recover()
        return [m for c in history.list_conversations(limit=1) for m in history.path(c.active_leaf)]
    finally:
        history.close()


def answer(home: Path) -> str:
    return next((m.content for m in stored(home) if m.role == "assistant"), "")


def test_from_start_to_quit(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    app = terminal("-n", "8", "--temperature", "0")
    app.type(b"Say hello.\r")
    app.read_until(lambda: [m.status for m in stored(tmp_path)] == [Status.DONE] * 2)
    app.type(b"\x11")  # ctrl+q
    assert app.ended(20) == 0
    question, reply = stored(tmp_path)
    assert (question.content, reply.status) == ("Say hello.", Status.DONE)
    assert len(reply.content) > 5
    again = terminal("-n", "8")  # and what was said is there again
    again.type(b"\x1b[17~")  # F6, the list of chats
    again.see(b"Say hello.")


def test_quitting_does_not_wait_for_the_answer(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    app = terminal("--temperature", "0")
    app.type(LONG.encode() + b"\r")
    app.read_until(lambda: answer(tmp_path) != "")
    before = time.monotonic()
    app.type(b"\x11")
    assert app.ended(30) == 0
    print(f"quit after {time.monotonic() - before:.2f} s")
    assert [m.status for m in stored(tmp_path)] == [Status.DONE, Status.STOPPED]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_a_closed_terminal_or_a_kill_loses_nothing(
    terminal: Callable[..., Terminal], tmp_path: Path, number: signal.Signals
) -> None:
    app = terminal("--temperature", "0")
    app.type(LONG.encode() + b"\r")
    app.read_until(lambda: len(answer(tmp_path)) > 20)
    app.process.send_signal(number)
    app.process.wait(timeout=30)
    question, reply = stored(tmp_path, recover=True)
    assert question.content == LONG
    assert reply.status is Status.STOPPED
    assert len(reply.content) > 20


def test_wrong_flags_end_with_one_line(tmp_path: Path) -> None:
    app = Terminal(tmp_path, "--temperature", "-1")
    assert app.ended(30) == 2
    assert b"temperature must be between" in app.received
    app.close()


def test_the_app_chats_through_a_server_elsewhere(tmp_path: Path) -> None:
    with scripted() as server:
        server.on("GET /v1/models", lambda r: r.json({"data": [{"id": "big"}, {"id": "small"}]}))

        def answer(request: Handler) -> None:
            choice = {"index": 0, "delta": {"content": "Hello from afar"}, "finish_reason": "stop"}
            request.begin_stream()
            request.event({"choices": [choice]})
            request.event("[DONE]")
            request.end_stream()

        server.on("POST /v1/chat/completions", answer)
        app = Terminal(tmp_path, "--endpoint", server.url, "-m", "small", model=())
        try:
            app.see(b"small")
            app.type(b"Who is there?\r")
            app.read_until(lambda: [m.status for m in stored(tmp_path)] == [Status.DONE] * 2)
            app.type(b"\x11")
            assert app.ended(20) == 0
        finally:
            app.close()
        assert stored(tmp_path)[1].content == "Hello from afar"
        assert server.last("POST /v1/chat/completions").body["model"] == "small"
