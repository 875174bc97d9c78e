"""Benchmarks: their statistics, and that each command runs on a real model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from specchat.bench.compare import EndpointError, _ask
from specchat.bench.prompts import PROMPTS
from specchat.bench.runner import ARMS, Run, interval, mean, plan, ratio
from specchat.engine.sampling import SamplingParams
from specchat.errors import BadRequestError


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specchat", "bench", *args],
        capture_output=True,
        text=True,
        timeout=240,
    )


def made(arm: str, speed: float, prompt: int = 0, kind: str = "chat") -> Run:
    return Run(kind, prompt, 0, 0.0, arm, 10, speed, 2.0, None if arm == "plain" else 0.5, "")


def test_ratios_are_paired_by_prompt() -> None:
    runs = [made("plain", 10.0, 0), made("auto", 20.0, 0), made("plain", 100.0, 1),
            made("auto", 150.0, 1), made("auto", 1.0, 2)]  # fmt: skip
    found = ratio(runs, "auto", None, 0.0)
    assert found is not None
    assert found.pairs == 2  # the third has no plain run to compare with
    assert found.median == pytest.approx(1.75)
    assert ratio(runs, "auto", "json", 0.0) is None
    assert mean(runs, "auto", None, 0.0, "acceptance") == 0.5
    assert np.isnan(mean(runs, "plain", None, 0.0, "acceptance"))


def test_the_bootstrap_interval_covers_the_median() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(200):
        found = interval(list(rng.normal(1.2, 0.1, size=30)), seed)
        assert found.low <= found.median <= found.high
        hits += found.low <= 1.2 <= found.high
    assert hits > 175  # 95 % nominal


def test_every_arm_runs_once_per_prompt_and_none_always_first() -> None:
    order = plan(list(PROMPTS), list(ARMS), [0.0, 0.8], 2)
    counts = Counter(order)
    assert set(counts.values()) == {1}
    assert len(order) == sum(map(len, PROMPTS.values())) * len(ARMS) * 2 * 2
    firsts = Counter(order[i][4] for i in range(0, len(order), len(ARMS)))
    assert max(firsts.values()) - min(firsts.values()) <= 1
    with pytest.raises(BadRequestError, match="no kind 'poetry'"):
        plan(["poetry"], ["plain"], [0.0], 1)
    with pytest.raises(BadRequestError, match="no arm '3'"):
        plan(["chat"], ["3"], [0.0], 1)


def test_prompts_cover_six_kinds() -> None:
    assert len(PROMPTS) == 6
    assert all(len(prompts) >= 3 for prompts in PROMPTS.values())


def test_run_measures_a_real_model(tmp_path: Path) -> None:
    file, picture = tmp_path / "out.json", tmp_path / "out.svg"
    result = bench(
        "run", "--kinds", "json", "code edit", "--arms", "plain", "lookup", "--tokens", "12",
        "--temperatures", "0", "--json", str(file), "--plot", str(picture),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "json" in result.stdout
    found = json.loads(file.read_text())
    assert found["constructed_target"] is False
    assert len(found["runs"]) == 2 * 3 * 2
    assert all(r["tokens_per_second"] > 0 for r in found["runs"])
    assert found["verify_seconds"]["1"] > 0
    assert b"<svg" in picture.read_bytes()[:2000]


def test_overhead_runs_on_a_real_model() -> None:
    result = bench("overhead", "--blocks", "1")
    assert result.returncode == 0, result.stderr
    for row in ("bare loop", "greedy", "sampled", "all samplers"):
        assert row in result.stdout


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["run", "--fixture", "nonsense"], "BF16:6:0.02"),
        (["run", "--fixture", "Q9:2:0.1"], "Q9"),
        (["run", "--tokens", "0"], "tokens"),
        (["sweep"], "draft"),
        (["compare", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["overhead", "--blocks", "0"], "blocks"),
    ],
)
def test_bad_requests_give_one_line(args: list[str], word: str) -> None:
    result = bench(*args)
    assert result.returncode in (1, 2)
    assert word in result.stderr
    assert "Traceback" not in result.stderr


class Server(BaseHTTPRequestHandler):
    """Streams an answer as an OpenAI-compatible server does; `chunks` is set by the test."""

    chunks: tuple[dict, ...] = ()
    status = 200
    asked: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()
        for chunk in self.chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    Server.status = 200
    Server.asked.clear()


def test_a_server_that_sends_timings_is_believed(server: str) -> None:
    Server.chunks = (
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [], "timings": {"predicted_n": 9, "predicted_per_second": 12.5}},
    )
    assert _ask(server, "hi", SamplingParams(), 10) == 12.5


def test_a_server_without_timings_is_timed(server: str) -> None:
    word = {"choices": [{"delta": {"content": "a"}}]}
    usage = {"choices": [], "usage": {"completion_tokens": 5}}
    Server.chunks = (word, word, word, word, word, usage)
    assert _ask(server, "hi", SamplingParams(), 10) > 0
    Server.chunks = ()
    with pytest.raises(EndpointError, match="neither timings nor"):
        _ask(server, "hi", SamplingParams(), 10)
    Server.status, Server.chunks = 503, ({"page": "many\nlines " * 100},)
    with pytest.raises(EndpointError, match="503") as error:
        _ask(server, "hi", SamplingParams(), 10)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "chunk",
    [
        {"usage": {"tokens": 5}},
        {"usage": 5},
        {"timings": {"predicted_n": 5}},
        {"timings": {"predicted_n": 5, "predicted_per_second": 0}},
    ],
)
def test_a_server_that_streams_something_else_is_refused(server: str, chunk: dict) -> None:
    Server.chunks = (chunk,)
    with pytest.raises(EndpointError, match=server):
        _ask(server, "hi", SamplingParams(), 10)


def test_an_impossible_address_is_refused() -> None:
    with pytest.raises(EndpointError, match="Cannot use"):
        _ask("http://[::1", "hi", SamplingParams(), 10)


def test_compare_asks_both_the_same(server: str) -> None:
    Server.chunks = ({"choices": [], "timings": {"predicted_n": 9, "predicted_per_second": 0.001}},)
    result = bench("compare", server, "--kinds", "json", "--tokens", "8", "--temperatures", "0")
    assert result.returncode == 0, result.stderr
    assert [body["messages"][0]["content"] for body in Server.asked] == list(PROMPTS["json"])
    assert {(body["max_tokens"], body["temperature"]) for body in Server.asked} == {(8, 0.0)}
    row = next(line for line in result.stdout.splitlines() if "json" in line)
    assert float(re.findall(r"\d+\.\d\d", row)[0]) > 100  # ours over the slow other's
