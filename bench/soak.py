"""Many clients of every kind on one endpoint, for long: does it leak, does anything get stuck?

    python bench/soak.py [--clients 8] [--requests 200] [--seed 1] [arguments of specchat serve]

Clients ask plainly, stream, hang up in the middle, read slowly, and send garbage. Prints one
JSON object: how many of each kind came out how, the memory of the server over time, what is
left running, and whether a plain question is still answered. Exits with 1 if the server
answered anything wrongly, kept a slot busy, or grew by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
from serving import serve

CHAT = "/v1/chat/completions"
TOPICS = ("rain", "bread", "bridges", "bees", "the moon", "chess", "salt", "tides", "glass")
KINDS = {"plain": 35, "stream": 30, "hang up": 15, "hang up early": 5, "slow": 5, "garbage": 10}
GARBAGE: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"", 400),
    (b"[1, 2]", 400),
    (b'{"messages": []}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -5}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "n": 100000}', 400),
    (b"[" * 5000 + b"]" * 5000, 400),
    (b'{"messages": "\xff\xfe"}', 400),
    (b'{"messages": [{"role": "user", "content": "' + b"many words " * 9000 + b'"}]}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "response_format": '
     b'{"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/no"}}}}', 400),
)  # fmt: skip


class Client:
    """One that asks as its dice say; `outcomes` counts (kind, what came)."""

    def __init__(self, url: str, seed: int) -> None:
        self.http = httpx.Client(base_url=url, timeout=300)
        self.dice = random.Random(seed)
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def run(self, requests: int) -> Counter[tuple[str, str]]:
        for _ in range(requests):
            (kind,) = self.dice.choices(list(KINDS), list(KINDS.values()))
            try:
                outcome = getattr(self, kind.replace(" ", "_"))()
            except httpx.HTTPError as error:
                outcome = f"failed: {type(error).__name__}"
            self.outcomes[kind, outcome] += 1
        self.http.close()
        return self.outcomes

    def body(self, **more: Any) -> dict[str, Any]:
        text = f"Tell me about {self.dice.choice(TOPICS)} and {self.dice.choice(TOPICS)}."
        asked = {"messages": [{"role": "user", "content": text}]}
        return {**asked, "max_tokens": self.dice.randint(1, 32), **more}

    def plain(self) -> str:
        answer = self.http.post(CHAT, json=self.body(n=self.dice.choice((1, 1, 1, 2))))
        if answer.status_code != 200:
            return f"failed: {answer.status_code}"
        return "good" if answer.json()["choices"][0]["finish_reason"] else "failed: no reason"

    def stream(self, pause: float = 0.0) -> str:
        last = ""
        body = self.body(stream=True)
        with self.http.stream("POST", CHAT, json=body) as answer:
            if answer.status_code != 200:
                return f"failed: {answer.status_code}"
            for line in answer.iter_lines():
                last = line or last
                time.sleep(pause)
        return "good" if last == "data: [DONE]" else f"failed: ended with {last[:60]}"

    def slow(self) -> str:
        return self.stream(pause=0.1)

    def hang_up(self) -> str:
        with self.http.stream("POST", CHAT, json=self.body(stream=True, max_tokens=200)) as answer:
            lines = self.dice.randint(1, 20)
            for _ in zip(range(lines), answer.iter_lines(), strict=False):
                pass
        return "good" if answer.status_code == 200 else f"failed: {answer.status_code}"

    def hang_up_early(self) -> str:
        """Before anything came, so perhaps while it waits in the queue or its prompt is read."""
        try:
            self.http.post(CHAT, json=self.body(max_tokens=200), timeout=self.dice.random() * 0.5)
        except httpx.TimeoutException:
            return "good"
        return "good: answered before"

    def garbage(self) -> str:
        content, status = self.dice.choice(GARBAGE)
        headers = {"content-type": "application/json"}
        answer = self.http.post(CHAT, content=content, headers=headers)
        if answer.status_code != status or "error" not in answer.json():
            return f"failed: {answer.status_code} for {content[:60]!r}"
        return "good"


class Memory:
    """The server's resident bytes and threads, twice a second."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self.samples: list[int] = []
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.samples.append(self._process.memory_info().rss)

    def end(self) -> dict[str, Any]:
        """Medians of tenths of the time, in MiB; growth from the second to the last."""
        self._stop.set()
        self._thread.join()
        size = max(1, len(self.samples) // 10)
        tenths = [self.samples[i * size : (i + 1) * size] or self.samples for i in range(10)]
        mib = [round(statistics.median(part) / 2**20, 1) for part in tenths]
        return {"mib": mib, "growth": round(mib[-1] / mib[1] - 1, 4)}


def settled(url: str) -> dict[str, Any]:
    """What /health says once nothing runs, or after 30 s."""
    for _ in range(60):
        health: dict[str, Any] = httpx.get(f"{url}/health").json()
        if not health["running"] and not health["waiting"]:
            break
        time.sleep(0.5)
    return health


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=200, help="of each client")
    parser.add_argument("--seed", type=int, default=1)
    args, serving = parser.parse_known_args()
    with serve(serving or ["--parallel", "4", "--ctx", "1024"]) as (url, pid):
        memory, start = Memory(pid), time.monotonic()
        clients = [Client(url, args.seed * 1000 + i) for i in range(args.clients)]
        outcomes: Counter[tuple[str, str]] = Counter()
        with ThreadPoolExecutor(args.clients) as pool:
            for found in pool.map(lambda client: client.run(args.requests), clients):
                outcomes += found
        seconds = time.monotonic() - start
        left, grown = settled(url), memory.end()
        last = Client(url, 0).plain()
        process = psutil.Process(pid)
        result = {
            "requests": outcomes.total(),
            "seconds": round(seconds, 1),
            "outcomes": {f"{kind}, {what}": n for (kind, what), n in sorted(outcomes.items())},
            "memory": grown,
            "left": left,
            "open_files": process.num_fds(),
            "threads": process.num_threads(),
            "a plain question afterwards": last,
        }
    print(json.dumps(result, indent=1))
    failed = any("failed" in what for _, what in outcomes) or last != "good"
    return int(failed or left["running"] or left["waiting"] or grown["growth"] > 0.05)


if __name__ == "__main__":
    sys.exit(main())
