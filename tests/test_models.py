"""Names, pairs and rankings: from models.toml and local files to what is loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_llama import write_tiny_llama

from specchat.engine.calibration import Calibration
from specchat.engine.header import read_header
from specchat.engine.llama import ModelOptions
from specchat.errors import ModelFileError, UnknownModelError
from specchat.models.discovery import Found
from specchat.models.facts import facts_of
from specchat.models.local import find, statuses
from specchat.models.naming import resolve, resolve_draft
from specchat.models.ranking import LONGEST, RankedDraft, predict, prior_acceptance, rank_drafts
from specchat.models.registry import ModelFile, Registry, load_registry


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_llama(path)
    return path


def found(path: Path, **facts: object) -> Found:
    """As if discovered, with some facts changed."""
    return Found(path, "", path.stem, replace(facts_of(read_header(path)), **facts))


REGISTRY = """
[files.big]
repo = "owner/Big-GGUF"
file = "sub/Big-Q4.gguf"
[files.small]
repo = "owner/Small-GGUF"
file = "Small-Q8.gguf"
[pairs.pair]
target = "big"
draft = "small"
context = 300
sampling = { temperature = 0.0, top_k = 5 }
"""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    path = tmp_path / "models.toml"
    path.write_text(REGISTRY)
    return load_registry([path])


def here(tiny: Path, *places: Path) -> list[Found]:
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tiny, path)
    return [found(path) for path in places]


# -- which files of a pair are here ----------------------------------------------------


def test_missing_and_present_files_of_a_pair(tiny: Path, tmp_path: Path, registry) -> None:
    (state,) = statuses(registry, [])
    assert (state.missing, state.ready) == (("big", "small"), False)
    files = here(tiny, tmp_path / "any/big-q4.gguf")
    (state,) = statuses(registry, files)
    assert (state.target, state.missing) == (files[0].path, ("small",))
    files += here(tiny, tmp_path / "llama.cpp/owner_Small-GGUF_Small-Q8.gguf")
    (state,) = statuses(registry, files)
    assert (state.draft, state.ready) == (files[1].path, True)


def test_the_repositorys_own_folder_is_preferred(tiny: Path, tmp_path: Path) -> None:
    wanted = ModelFile(repo="owner/Big-GGUF", file="Big-Q4.gguf")
    other, hub, broken = here(
        tiny,
        tmp_path / "other/Repo-GGUF/Big-Q4.gguf",
        tmp_path / "models--owner--Big-GGUF/snapshots/abc/Big-Q4.gguf",
        tmp_path / "owner/Big-GGUF/Big-Q4.gguf",
    )
    broken = replace(broken, facts=None, problem="cut short")
    assert find(wanted, [other, hub, broken]) == hub
    assert find(wanted, [broken, other]) == other
    assert find(wanted, [broken]) == broken
    assert find(ModelFile(repo="owner/Big-GGUF", file="Big-Q8.gguf"), [other, hub]) is None


def test_a_damaged_file_is_a_problem_not_missing(tiny: Path, tmp_path: Path, registry) -> None:
    big, small = here(tiny, tmp_path / "Big-Q4.gguf", tmp_path / "Small-Q8.gguf")
    big = replace(big, facts=None, problem="Big-Q4.gguf is cut short")
    (state,) = statuses(registry, [big, small])
    assert (state.missing, state.ready, state.problem) == ((), False, "Big-Q4.gguf is cut short")


# -- names -----------------------------------------------------------------------------


def test_a_name_brings_files_and_defaults(tiny: Path, tmp_path: Path, registry) -> None:
    files = here(tiny, tmp_path / "Big-Q4.gguf", tmp_path / "Small-Q8.gguf")
    both = resolve("pair", registry=registry, found=files)
    assert (both.target, both.draft, both.context) == (files[0].path, files[1].path, 300)
    assert both.sampling == {"temperature": 0.0, "top_k": 5}
    assert resolve("pair", draft=False, registry=registry, found=files[:1]).draft is None
    assert resolve("big", registry=registry, found=files).target == files[0].path
    assert resolve_draft("small", registry=registry, found=files) == files[1].path


def test_what_is_not_here_says_how_to_get_it(tiny: Path, tmp_path: Path, registry) -> None:
    with pytest.raises(ModelFileError, match="specchat pull pair"):
        resolve("pair", registry=registry, found=[])
    files = here(tiny, tmp_path / "Big-Q4.gguf")
    with pytest.raises(ModelFileError, match=r"\(small\).*specchat pull pair.*-d none"):
        resolve("pair", registry=registry, found=files)
    with pytest.raises(ModelFileError, match="specchat pull small"):
        resolve_draft("small", registry=registry, found=files)


def test_other_programs_names_work_too(tiny: Path, tmp_path: Path, registry) -> None:
    (blob,) = here(tiny, tmp_path / "blobs/sha256-aa")
    model = replace(blob, name="llama3.2:1b")
    assert resolve("llama3.2:1b", registry=registry, found=[model]).target == blob.path
    with pytest.raises(UnknownModelError, match=r"Did you mean llama3\.2:1b"):
        resolve("llama3.2", registry=registry, found=[model])


# -- ranking ---------------------------------------------------------------------------


def ranked(target: Found, *others: Found) -> list[RankedDraft]:
    return rank_drafts(target, [target, *others])


@pytest.fixture
def target(tiny: Path, tmp_path: Path) -> Found:
    (file,) = here(tiny, tmp_path / "target.gguf")
    return found(file.path, step_bytes=20_000_000, quantisation="BF16")


def test_the_prediction_is_the_formulas_maximum() -> None:
    curve, step, a = 1 + 0.2 * np.arange(LONGEST + 1), 0.05, 0.8
    expected = [sum(a**i for i in range(k + 1)) / (curve[k] + k * step) for k in range(LONGEST + 1)]
    speedup, length = predict(a, curve, step)
    assert speedup == pytest.approx(max(expected))
    assert length == expected.index(max(expected)) > 0
    assert predict(0.05, 1 + 0.9 * np.arange(LONGEST + 1), 0.3) == (1.0, 0)


def test_the_prior_runs_through_the_published_figures() -> None:
    """Leviathan et al. 2022, table 3: LaMDA 137B with drafts of 8B, 2B and 100M."""
    for ratio, low, high in ((17, 0.74, 0.75), (68, 0.71, 0.75), (1370, 0.57, 0.61)):
        assert low - 0.03 < prior_acceptance(ratio, True) < high + 0.03
    assert prior_acceptance(10, False) < prior_acceptance(10, True)
    assert 0.05 <= prior_acceptance(1e30, False) < prior_acceptance(1, True) <= 0.95


def test_smaller_drafts_are_faster_until_they_are_bad(target: Found, tiny: Path, tmp_path) -> None:
    files = here(tiny, *(tmp_path / f"{size}.gguf" for size in (10_000_000, 2_000_000, 1)))
    sizes = [replace(f, facts=replace(f.facts, step_bytes=int(f.name))) for f in files]
    order = ranked(target, *sizes)
    assert [r.found.name for r in order] == ["2000000", "1", "10000000", "target"]
    best = order[0]
    assert best.step == pytest.approx(0.1)
    assert best.speedup > 1.2
    assert best.basis == "BF16 cost curve of another machine; acceptance and step cost by size"


def test_every_refusal_has_its_reason(target: Found, tiny: Path, gemma: Path, tmp_path) -> None:
    (twin,) = here(tiny, tmp_path / "twin.gguf")
    bad = Found(tmp_path / "bad.gguf", "", "bad", None, "bad.gguf is cut short")
    link = tmp_path / "link.gguf"
    link.symlink_to(target.path)
    gone = replace(
        twin, name="gone", path=tmp_path / "gone.gguf", facts=replace(twin.facts, fingerprint="-")
    )
    large = replace(twin, facts=replace(twin.facts, step_bytes=10**9))
    order = ranked(target, large, bad, replace(found(gemma)), found(link), gone)
    reasons = {r.found.name: r.fit.reason for r in order}
    assert not any(r.fit.fits for r in order)
    assert reasons["bad"] == "bad.gguf is cut short"
    assert reasons["link"] == reasons["target"] == "it is the target itself"
    assert "no smaller than the target" in reasons["twin"]
    assert "does not exist" in reasons["gone"]
    assert reasons[gemma.stem] == "bos_token_id is 1 in the target and 2 in the draft"
    with pytest.raises(ModelFileError, match="cut short"):
        rank_drafts(bad, [])


def test_what_was_measured_here_replaces_the_table(target: Found, tiny: Path, tmp_path) -> None:
    """A calibration as the engine keeps it, of exactly these files."""

    class Model:
        def __init__(self, path: Path) -> None:
            self.path, self.options = path, ModelOptions(threads=1)

    (draft,) = here(tiny, tmp_path / "draft.gguf")
    draft = replace(draft, facts=replace(draft.facts, step_bytes=2_000_000))
    kept = Calibration(Model(target.path), Model(draft.path), LONGEST)
    for n in range(1, 18):
        kept.costs.target.add(0, n, 0.010 + 0.0001 * n)  # a flat curve, as on a GPU
    kept.costs.draft.add(0, 1, 0.0005)
    kept.save()
    before = ranked(replace(target, path=tiny), draft)[0]
    measured = ranked(target, draft)[0]
    assert measured.speedup > before.speedup + 1
    assert measured.step == pytest.approx(0.0005 / 0.0101)
    assert measured.basis == (
        "cost curve measured here; step cost measured here, acceptance by size"
    )
    from specchat.engine.acceptance import Acceptance

    learned = kept.acceptance("exact|0.8")["draft"] = Acceptance(lambda c: c, LONGEST)
    for _ in range(60):
        learned.observe([0.5, 0.5], [0.4, 0.4])
    kept.save()
    again = ranked(target, draft)[0]
    assert again.acceptance == pytest.approx(0.4, abs=0.01)
    assert again.basis.endswith("step cost and acceptance measured here")


# -- the command line ------------------------------------------------------------------


def specchat(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run it with a home of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "OLLAMA", "LLAMA_C"))}
    for name in ("CACHE", "DATA", "CONFIG", "STATE"):
        env[f"XDG_{name}_HOME"] = str(home / name.lower())
    return subprocess.run(
        [sys.executable, "-m", "specchat", *args], env=env | {"HOME": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def config(home: Path, text: str) -> None:
    path = home / "config/specchat/models.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_models_are_listed(tiny: Path, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "models"
    here(tiny, folder / "tiny.gguf", folder / "\x1b[31mre[b]d\n.gguf")
    os.rename(folder / "tiny.gguf", os.fsencode(folder / "t") + b"\xff.gguf")
    (folder / "x.gguf").write_bytes(b"GGUF")
    config(home, f'folders = ["{folder}"]\n')
    text = specchat(home, "models")
    assert text.returncode == 0, text.stderr
    assert "\x1b" not in text.stdout
    lines = text.stdout.splitlines()
    assert any("SmolLM2-135M-Instruct.Q4_1" in x and "92 MiB" in x and "ChatML" in x for x in lines)
    assert any("[31mre[b]d" in x and str(folder) in x for x in lines)
    assert any("x.gguf is damaged" in x for x in lines)
    assert any("smollm2-1.7b" in x and "to download" in x for x in lines)
    assert str(home / "config/specchat/models.toml") in lines[-1]
    listed = json.loads(specchat(home, "models", "--json").stdout)
    assert len(listed["files"]) == 4
    assert {f["problem"] is None for f in listed["files"]} == {True, False}
    facts = next(f["facts"] for f in listed["files"] if f["name"].startswith("Smol"))
    assert (facts["file_type"], facts["context"], facts["vocabulary"]) == ("Q4_1", 8192, 49152)
    assert any(p["name"] == "smollm2-1.7b" and p["missing"] for p in listed["pairs"])


def test_drafts_are_ranked(tiny: Path, smollm2: Path, tmp_path: Path) -> None:
    folder = ("--folder", str(tiny.parent))
    text = specchat(tmp_path, "models", "pair", str(tiny), *folder)
    assert text.returncode == 0, text.stderr
    assert "Refused:" in text.stdout
    assert "tokenizer model is 'llama' in the target and 'gpt2' in the draft" in text.stdout
    answer = json.loads(
        specchat(tmp_path, "models", "pair", smollm2.stem, "--json", *folder).stdout
    )
    assert answer["target"]["path"] == str(smollm2)
    assert {d["name"]: d["fits"] for d in answer["drafts"]} == {"tiny": False, smollm2.stem: False}
    missing = specchat(tmp_path, "models", "pair", "smolm2")
    assert missing.returncode == 2
    assert "Did you mean smollm2" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1


def test_a_name_is_used_like_a_file(smollm2: Path, tmp_path: Path) -> None:
    """The pair's draft, sampling, context and template take effect unless overridden."""
    (tmp_path / "config/specchat").mkdir(parents=True)
    (tmp_path / "config/specchat/mine.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    config(
        tmp_path,
        f'[files.smol]\npath = "{smollm2}"\n[pairs.mine]\ntarget = "smol"\ndraft = "smol"\n'
        'context = 64\ntemplate = "mine.jinja"\nsampling = { temperature = 0.0 }\n',
    )
    args = ("-p", "One two three one two three one", "-n", "8", "--threads", "1", "--json")
    fixed = ("--draft-length", "3", "--drafter", "draft")

    def ask(*more: str) -> tuple[str, dict]:
        result = specchat(tmp_path, *args, *more)
        assert result.returncode == 0, result.stderr
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return "".join(x["text"] for x in lines if x["type"] == "token"), lines[-1]["usage"]

    text, usage = ask("-m", "mine", *fixed)
    assert usage["target_calls"] < usage["completion_tokens"]  # the draft's tokens were kept
    again, plain = ask("-m", "mine", "-d", "none", *fixed)
    assert again == text  # greedy
    assert plain["target_calls"] == plain["completion_tokens"]
    assert usage["prompt_tokens"] < 12  # the pair's template adds nothing
    (tmp_path / "long.jinja").write_text("word " * 9 + "{{ messages[0].content }}")
    _, other = ask("-m", "mine", "-d", "none", "--template", str(tmp_path / "long.jinja"))
    assert other["prompt_tokens"] >= usage["prompt_tokens"] + 9
    long = specchat(tmp_path, "-m", "mine", "-d", "none", "-p", "word " * 80)
    assert "context holds 64" in long.stderr
    assert specchat(tmp_path, "-m", "mine", "-d", "none", "-p", "word " * 80, "--ctx", "256",
                    "-n", "1").returncode == 0  # fmt: skip


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-m", "smollm2-1.7", "-p", "x"), ["no known model", "Did you mean", "smollm2-1.7b"]),
        (("-m", "smollm2-1.7b", "-p", "x"), ["specchat pull smollm2-1.7b"]),
        (("doctor", "-m", "smollm2-1.7b"), ["specchat pull smollm2-1.7b"]),
        (("serve", "-m", "smollm2-1.7b"), ["specchat pull smollm2-1.7b"]),
        (("bench", "run", "-m", "smollm2-1.7b"), ["specchat pull smollm2-1.7b"]),
        (("-m", "none.gguf", "-p", "x"), ["none.gguf does not exist"]),
        (("-d", "zzzz", "-m", "none.gguf", "-p", "x"), ["called zzzz"]),
    ],
)
def test_names_that_lead_nowhere_end_with_one_line(tmp_path: Path, args, words) -> None:
    result = specchat(tmp_path, *args)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    for word in words:
        assert word in line


def test_a_broken_users_file_is_named(tmp_path: Path) -> None:
    config(tmp_path, '[pairs.mine]\ntarget = "nothing"\n')
    result = specchat(tmp_path, "models")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "models.toml, line 2, pairs.mine.target: there is no [files.nothing]" in line
