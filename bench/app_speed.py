"""How fast the app is: first paint, load of the screen's thread, input latency, and quitting.

    python bench/app_speed.py [--rate 200] [--tokens 20000] [--seconds 10]

Runs the app in a real pseudo-terminal with a conversation of `tokens` tokens open, while a
recorded engine writes `rate` tokens per second, and types. It quits while the engine is in a
call of 20 s. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
WORDS = [
    "the",
    "draft",
    "proposes",
    "and",
    "the",
    "target",
    "checks",
    "every",
    "token",
    "of",
    "it",
    "in",
    "one",
    "call\n",
]
TYPED = "§"  # in no answer
ANSWER = 500  # tokens of one stored answer


def write_conversation(path: Path, tokens: int) -> None:
    from recorded_engine import one_round, token

    from specchat.history import History, Status

    history = History(path)
    chat, parent = history.create("A long one"), None
    for _ in range(max(1, tokens // ANSWER)):
        parent = history.add_message(chat.id, parent, "user", "Go on.").id
        parent = history.begin_answer(chat.id, parent, "target", "draft").id
        texts = [f"{WORDS[i % len(WORDS)]} " for i in range(ANSWER)]
        history.append_answer(
            parent, [token(t, round_=i) for i, t in enumerate(texts)],
            [one_round(i) for i in range(ANSWER)],
        )  # fmt: skip
        history.finish_answer(parent, Status.DONE)
    history.close()


def run_app(path: Path, rate: float) -> None:
    """The child: the app with a recorded engine, the stored conversation open."""
    from recorded_engine import Recorded
    from textual.pilot import Pilot

    from specchat.engine.engine import Settings
    from specchat.history import History
    from specchat.tui.app import SpecchatApp
    from specchat.tui.preferences import Preferences
    from specchat.tui.session import Session

    engine = Recorded([f"{WORDS[i % len(WORDS)]} " for i in range(100_000)], rate=rate)
    session = Session(lambda progress: engine, Settings)  # type: ignore[arg-type,return-value]
    history = History(path)
    app = SpecchatApp(session, history, preferences=Preferences(view="tokens"))

    async def open_first(pilot: Pilot[None]) -> None:
        while app.main.ready is None:
            await pilot.pause(0.05)
        app.main.open_chat(history.list_conversations()[0].id)

    app.run(auto_pilot=open_first)


class Screen:
    """The other side of the terminal."""

    def __init__(self, command: list[str]) -> None:
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.start = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower,
            env=os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )  # fmt: skip
        os.close(follower)

    def see(self, wanted: bytes, seconds: float) -> float | None:
        """Seconds until `wanted` was written, None if it was not."""
        begun, seen = time.perf_counter(), b""
        while (passed := time.perf_counter() - begun) < seconds:
            if select.select([self.leader], [], [], 0.005)[0]:
                try:
                    seen = seen[-1000:] + os.read(self.leader, 65536)
                except OSError:  # Linux says EIO once the other side has closed
                    return None
                if wanted in seen:
                    return time.perf_counter() - begun
        return None if passed >= seconds else passed


def quit_during_a_call(path: Path) -> float:
    """Seconds from the key until the process has ended."""
    write_conversation(path, ANSWER)
    screen = Screen([sys.executable, __file__, "--child", str(path), "--rate", "0.05"])
    screen.see(b"target", 30)
    time.sleep(2)
    os.write(screen.leader, b"Go on.\r")
    screen.see(b"tok/s", 10)
    begun = time.perf_counter()
    os.write(screen.leader, b"\x11")
    while screen.process.poll() is None and time.perf_counter() - begun < 30:
        screen.see(b"\0", 0.01)  # it must not wait for us to read
    screen.process.kill()
    return time.perf_counter() - begun


def measure(rate: float, tokens: int, seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {f"XDG_{n}_HOME": folder for n in ("DATA", "CONFIG", "STATE", "CACHE")}
        started = Screen([sys.executable, "-m", "specchat"])
        paint = started.see(b"Ask something", 30)
        started.process.kill()
        started.process.wait()
        quitting = quit_during_a_call(Path(folder) / "quit.db")
        path = Path(folder) / "bench.db"
        write_conversation(path, tokens)
        screen = Screen([sys.executable, __file__, "--child", str(path), "--rate", str(rate)])
        screen.see(b"target", 30)
        time.sleep(2)
        os.write(screen.leader, b"Go on.\r")
        screen.see(b"tok/s", 10)
        process = psutil.Process(screen.process.pid)
        before, begun = _main_thread(process), time.perf_counter()
        latencies = []
        while time.perf_counter() - begun < seconds:
            os.write(screen.leader, TYPED.encode())
            latency = screen.see(TYPED.encode(), 5)
            latencies.append(latency if latency is not None else 5.0)
            screen.see(b"\0", 0.2)  # reads on meanwhile
        passed = time.perf_counter() - begun
        load = (_main_thread(process) - before) / passed
        memory = process.memory_info().rss
        screen.process.kill()
        return {
            "first_paint_seconds": paint and round(paint, 3),
            "rate": rate,
            "conversation_tokens": tokens,
            "screen_thread_share_of_a_core": round(load, 3),
            "input_latency_ms": {
                "median": round(1000 * statistics.median(latencies), 1),
                "p95": round(1000 * sorted(latencies)[int(0.95 * len(latencies))], 1),
                "worst": round(1000 * max(latencies), 1),
                "keys": len(latencies),
            },
            "quit_seconds": round(quitting, 3),
            "memory_mib": memory // 2**20,
        }


def _main_thread(process: psutil.Process) -> float:
    thread = next(t for t in process.threads() if t.id == process.pid)
    return float(thread.user_time + thread.system_time)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_app(args.child, args.rate)
    else:
        print(json.dumps(measure(args.rate, args.tokens, args.seconds), indent=1))
