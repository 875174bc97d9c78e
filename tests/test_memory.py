"""The memory that headers promise is the memory that llama.cpp takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_header import KIND, rewrite, split
from tiny_llama import write_tiny_llama
from tiny_recurrent import write_lfm2, write_mamba

from specchat.cli.fit import Fit, report
from specchat.cli.tables import console
from specchat.engine.header import Header, read_header
from specchat.engine.llama import ModelOptions, may_use_gpu
from specchat.engine.memory import MemoryNeed, free_memory, memory_need

# Loads each model, fills a call, and prints what llama.cpp logged and the process grew by.
MEASURE = """
import json, sys
import psutil
from specchat.engine.llama import LlamaModel, ModelOptions
from specchat.engine.llama.backend import log
from specchat.engine.model import Evaluate
log.install()
rss = psutil.Process().memory_info
for path, options in json.loads(sys.argv[1]):
    end, before = log.path.stat().st_size, rss().rss
    with LlamaModel.load(path, ModelOptions(**options)) as model:
        tokens = [3] * model.prefill_chunk
        model.evaluate([Evaluate(model.new_cache(), tokens, model.options.max_outputs)])
        print(json.dumps([log.path.read_bytes()[end:].decode(), rss().rss - before]))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "tiny.gguf"
    write_tiny_llama(path)
    return path


def allocated(log: str, kind: str) -> float:
    """MiB of all buffers of a kind that llama.cpp logged, each to two decimals."""
    return sum(map(float, re.findall(rf"{kind} buffer size = +([\d.]+) MiB", log)))


def test_llama_takes_what_the_header_promises(smollm2: Path, tiny: Path, tmp_path: Path) -> None:
    """Weights, KV cache and state as logged, to the log's 0.01 MiB; buffers within a factor
    of two; the whole process within 15 % (it has a tokenizer and libraries too).
    """
    write_mamba(tmp_path / "mamba.gguf", layers=5)
    write_lfm2(tmp_path / "lfm2.gguf")
    cases: list[tuple[Path, dict]] = [
        (smollm2, {"n_ctx": 8000, "threads": 1}),
        (smollm2, {"n_ctx": 300, "sequences": 3, "type_k": "q8_0", "threads": 1}),
        (tiny, {"n_ctx": 4096, "flash_attention": "off", "threads": 1}),
        (tmp_path / "mamba.gguf", {"n_ctx": 512, "sequences": 8, "threads": 1}),
        (tmp_path / "lfm2.gguf", {"n_ctx": 4096, "sequences": 2, "threads": 1}),
    ]
    argument = json.dumps([(str(path), options) for path, options in cases])
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, argument], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    gpu = may_use_gpu(-1)
    lines = result.stdout.splitlines()
    for (path, given), (log, grown) in zip(cases, map(json.loads, lines), strict=True):
        header, options = read_header(path), ModelOptions(**given)
        need, mib = memory_need(header, options), 2**20
        tied = {t.name: t.nbytes or 0 for t in header.tensors}
        copy = 0 if "output.weight" in tied else tied["token_embd.weight"]
        weights = allocated(log, "model")
        assert need.weights / mib - 0.02 <= weights <= (need.weights + copy) / mib + 0.02
        assert allocated(log, "KV") == pytest.approx(need.kv / mib, abs=0.02)
        assert allocated(log, "RS") == pytest.approx(need.state / mib, abs=0.02)
        returned = 4 * options.max_outputs * header.vocabulary_size / mib
        buffers = allocated(log, "compute") + returned
        if not gpu:
            assert 0.5 < need.buffers / mib / buffers < 2
        if path == smollm2 and not gpu and options.sequences == 1:
            assert grown == pytest.approx(need.total, rel=0.15)


# -- what headers say, without llama.cpp -----------------------------------------------


def need(header: Header, **options: object) -> MemoryNeed:
    return memory_need(header, ModelOptions(**options))


def test_grouped_heads_types_and_context(smollm2: Path) -> None:
    """30 layers, 3 KV heads of 64, keys and values of two bytes each."""
    header = read_header(smollm2)
    assert need(header, n_ctx=1024).kv == 1024 * 30 * 3 * 64 * (2 + 2)
    assert need(header, n_ctx=1000).kv == need(header, n_ctx=1024).kv  # rounded up
    assert need(header).kv == 8 * need(header, n_ctx=1024).kv  # as long as it was trained for
    assert need(header, n_ctx=1024, sequences=4).kv == 4 * need(header, n_ctx=1024).kv
    mixed = need(header, n_ctx=1024, type_k="q8_0", type_v="q4_0").kv
    assert mixed == 1024 * 30 * 3 * 2 * (34 + 18)
    assert memory_need(header, ModelOptions(), 512).kv == need(header, n_ctx=512).kv


def test_sliding_windows_count_in_full(gemma: Path) -> None:
    header = read_header(gemma)
    assert header.get("attention.sliding_window")
    assert need(header, n_ctx=1024).kv == 1024 * 18 * 1 * 256 * (2 + 2)


@pytest.mark.parametrize(
    ("fields", "kv"),
    [
        ({}, 2 * (2 * 16 * 2 * 2)),  # two layers, two heads of 16, two bytes, keys and values
        ({"head_count": [4, 0], "head_count_kv": [2, 0]}, (2 + 0) * 8 * 2 * 2),
        ({"head_count_kv": 1, "key_length": 64, "value_length": 32}, 2 * 1 * (64 + 32) * 2),
        ({"head_count_kv": 1, "key_length": 40, "key_length_mla": 24}, 2 * 1 * 40 * 2),
        ({"key_length_swa": 8, "value_length_swa": 8, "sliding_window_pattern": [1, 0]},
         2 * (8 + 16) * 2 * 2),
        ({"shared_kv_layers": 1}, 1 * 2 * 16 * 2 * 2),
    ],
)  # fmt: skip
def test_layers_that_differ(tiny: Path, tmp_path: Path, fields: dict, kv: int) -> None:
    changed: dict[str, tuple] = {}
    for name, value in fields.items():
        one = (value, KIND.UINT32)
        several = (value, KIND.ARRAY, KIND.INT32)
        changed[f"llama.attention.{name}"] = several if isinstance(value, list) else one
    header = read_header(rewrite(tiny, tmp_path / "model.gguf", changed))
    assert need(header, n_ctx=256).kv == 256 * kv


def test_all_parts_of_a_split_file_count(tiny: Path, tmp_path: Path) -> None:
    whole = read_header(split(tiny, tmp_path, 3, 3))
    assert need(whole).weights == 3 * need(read_header(tiny)).weights


def test_recurrent_models_say_so(tmp_path: Path) -> None:
    write_lfm2(tmp_path / "lfm2.gguf")
    assert read_header(tmp_path / "lfm2.gguf").recurrent


# -- what is free ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": 9, "memory.current": 5, "memory.stat": "anon 3\ninactive_file 2"}, 6),
        ({"memory.max": "max", "memory.current": 500, "memory.stat": ""}, None),
        ({"memory.max": 400, "memory.current": 500, "memory.stat": "inactive_file 0"}, 0),
        ({"memory/memory.limit_in_bytes": 900, "memory/memory.usage_in_bytes": 500,
          "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 70"}, 470),
        ({}, None),
    ],
)  # fmt: skip
def test_a_containers_limit_counts(tmp_path: Path, files: dict, free: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    if free is None:
        assert free_memory(tmp_path) > 10**6
    else:
        assert free_memory(tmp_path) == free


# -- the verdict, and what to change ---------------------------------------------------


def lines(fit: Fit, capsys, gpu: bool = False) -> tuple[bool, str]:
    fits = report(console(), fit, gpu)
    return fits, capsys.readouterr().out


def test_what_to_change_is_enough(smollm2: Path, capsys) -> None:
    """Every advice that says "then it fits" does, and no context a step longer would."""
    header = read_header(smollm2)
    whole = Fit(header, header, ModelOptions(), 2**40)
    assert lines(whole, capsys)[0]
    assert whole.advice() == []
    for share in (0.3, 0.45, 0.55, 0.8, 0.99):
        fit = replace(whole, free=int(share * whole.need.total))
        fits, text = lines(fit, capsys)
        assert not fits
        assert "DOES NOT FIT" in text
        alone = replace(fit, draft=None)
        assert f"saves {whole.draft_need.total // 2**20} MiB" in text
        assert (", then it fits" in fit.advice()[0]) == alone.fits
        if match := re.search(r"--ctx (\d+)", text):
            n = int(match[1])
            longest = replace(fit, options=ModelOptions(n_ctx=n))
            assert longest.fits
            assert not replace(fit, options=ModelOptions(n_ctx=n + 256)).fits
        else:
            assert not replace(fit, options=ModelOptions(n_ctx=256)).fits
        smaller = replace(fit, options=ModelOptions(type_k="q8_0", type_v="q8_0"))
        (advice,) = [line for line in fit.advice() if "--type-k q8_0" in line]
        assert advice.endswith(", then it fits") == smaller.fits
    barely = lines(replace(whole, free=int(1.05 * whole.need.total)), capsys)
    assert barely[0]
    assert "barely" in barely[1]


def test_weights_can_be_read_again_but_no_cache(smollm2: Path, capsys) -> None:
    fit = Fit(read_header(smollm2), None, ModelOptions(n_ctx=256), 50 * 2**20)
    assert "from disk for every token" in lines(fit, capsys)[1]
    larger = replace(fit, options=ModelOptions(n_ctx=10**9))
    assert "from disk" not in lines(larger, capsys)[1]
    larger = replace(larger, free=2**40)
    assert "fewer parameters" not in lines(larger, capsys)[1]  # a context is enough


def test_what_cannot_help_is_not_advised(smollm2: Path, tmp_path: Path, capsys) -> None:
    header = read_header(smollm2)
    options = ModelOptions(type_k="q8_0", type_v="q8_0", mmap=False)
    text = lines(Fit(header, None, options, 2**20), capsys)[1]
    for word in ("-d none", "--type-k", "--ctx", "Q4_K_M", "from disk"):
        assert word not in text
    assert "fewer parameters" in text
    off = lines(Fit(header, None, ModelOptions(flash_attention="off"), 2**20), capsys)[1]
    assert "--type-v" not in off  # needs flash attention


def test_a_gpu_leaves_it_open(smollm2: Path, capsys) -> None:
    fits, text = lines(Fit(read_header(smollm2), None, ModelOptions(), 2**20), capsys, gpu=True)
    assert fits
    assert "if a GPU holds a part" in text
