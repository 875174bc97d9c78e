"""Finding models in the folders of other programs, whatever else lies in there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from dataclasses import asdict
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from test_header import KIND, rewrite, split
from tiny_llama import write_tiny_llama

from specchat.default_model import default_model
from specchat.engine.header import read_header
from specchat.engine.header_reader import _Reader
from specchat.models.discovery import Found, discover, scan
from specchat.models.facts import FactsCache, facts_of


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("discovery") / "tiny.gguf"
    write_tiny_llama(path)
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, so that only what a test puts there is found."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / f".{name.lower()}"))
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def look(*folders: Path) -> dict[str, Found]:
    """What is found besides the embedded model, by name."""
    found = [f for f in discover(folders) if f.path != default_model()]
    names = [f.name for f in found]
    assert len(set(names)) == len(names)
    return {f.name: f for f in found}


def put(tiny: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tiny, path)
    return path


def test_the_embedded_model_is_always_there(smollm2: Path) -> None:
    (only,) = discover()
    assert only.path == smollm2
    assert only.facts is not None
    assert (only.facts.file_type, only.facts.template) == ("Q4_1", "ChatML")
    assert only.facts.parameters == 134_515_008


def test_every_programs_folder_is_searched(tiny: Path, home: Path) -> None:
    put(tiny, home / ".lmstudio/models/owner/repo/lm.gguf")
    put(tiny, home / ".cache/lm-studio/models/owner/repo/old-lm.gguf")
    put(tiny, home / "elsewhere/set-lm.gguf")
    settings = home / ".lmstudio/settings.json"
    settings.write_text(json.dumps({"downloadsFolder": str(home / "elsewhere")}))
    put(tiny, home / ".cache/llama.cpp/owner_repo_cpp.gguf")
    put(tiny, home / ".data/specchat/models/own.gguf")
    # The Hub's cache: blobs by hash, linked from every snapshot that has them.
    hub = home / ".cache/huggingface/hub"
    blob = put(tiny, hub / "models--owner--Repo-GGUF/blobs/0123abcd")
    for revision in ("aaaa", "bbbb"):
        link = hub / f"models--owner--Repo-GGUF/snapshots/{revision}/hub.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(Path("../../blobs") / blob.name)
    put(tiny, hub / "datasets--owner--set/snapshots/aaaa/data.gguf")
    put(tiny, hub / "models--owner--Repo-GGUF/blobs/4567.incomplete")
    found = look()
    assert {name: f.program for name, f in found.items()} == {
        "lm": "LM Studio",
        "old-lm": "LM Studio",
        "set-lm": "LM Studio",
        "owner_repo_cpp": "llama.cpp",
        "own": "specchat",
        "hub": "Hugging Face",
    }
    assert all(f.facts for f in found.values())


def test_variables_move_the_folders(tiny: Path, tmp_path: Path, monkeypatch) -> None:
    put(tiny, tmp_path / "hf/hub/models--a--b/snapshots/c/hub.gguf")
    put(tiny, tmp_path / "cpp/cpp.gguf")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cpp"))
    assert set(look()) == {"hub", "cpp"}
    put(tiny, tmp_path / "hub2/models--a--b/snapshots/c/other.gguf")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub2"))
    assert set(look()) == {"other", "cpp"}


def ollama(root: Path, tiny: Path, tag: str, digest: str | None) -> None:
    layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:ff"}]
    if digest:
        layers.append({"mediaType": "application/vnd.ollama.image.model", "digest": digest})
    path = root / "manifests" / tag
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))


def test_ollamas_models_have_ollamas_names(tiny: Path, home: Path) -> None:
    root = home / ".ollama/models"
    put(tiny, root / "blobs/sha256-aa")
    put(tiny, root / "blobs/sha256-bb")
    ollama(root, tiny, "registry.ollama.ai/library/llama3.2/1b", "sha256:aa")
    ollama(root, tiny, "registry.ollama.ai/library/llama3.2/latest", "sha256:aa")  # the same
    ollama(root, tiny, "registry.ollama.ai/someone/tuned/q4", "sha256:bb")
    ollama(root, tiny, "hf.co/owner/repo/Q8_0", "sha256:cc")  # its blob is gone
    ollama(root, tiny, "registry.ollama.ai/library/cloud/latest", None)
    ollama(root, tiny, "registry.ollama.ai/library/evil/latest", "sha256:../../../etc/passwd")
    (root / "manifests/registry.ollama.ai/library/broken").write_text("{")
    found = look()
    assert found["llama3.2:1b"].facts
    assert found["someone/tuned:q4"].facts
    assert "does not exist" in found["hf.co/owner/repo:Q8_0"].problem
    assert found["evil:latest"].path.parent == root / "blobs"
    assert "not an Ollama manifest" in found["broken"].problem
    assert "cloud:latest" not in found
    assert "llama3.2:latest" not in found


def test_odd_files_get_a_verdict_each(tiny: Path, folder: Path) -> None:
    (folder / "four.gguf").write_bytes(b"GGUF")
    (folder / "empty.gguf").touch()
    (folder / "page.gguf").write_bytes(b"<html>404</html>")
    (folder / "cut.gguf").write_bytes(tiny.read_bytes()[:-100])
    (folder / "gone.gguf").symlink_to("nowhere.gguf")
    (folder / "self.gguf").symlink_to("self.gguf")
    os.mkfifo(folder / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(folder)  # names of sockets must be short
        server.bind("socket.gguf")
        os.chdir(here)
        (folder / "device.gguf").symlink_to(os.devnull)
        put(tiny, folder / "UPPER.GGUF")
        put(tiny, folder / "folder.gguf/inside.gguf")
        found = look(folder)
    assert {name: f.problem.partition(str(f.path))[2] for name, f in found.items()} == {
        "four": " is damaged: the header ends early, at byte 4. Download it again.",
        "empty": " is empty. Download it again.",
        "page": " is not a GGUF file but a web page: the download failed.",
        "cut": " is cut short: 100 bytes are missing. Download it again.",
        "gone": " is a link to a file that does not exist.",
        "self": ": Too many levels of symbolic links.",
        "pipe": " is a named pipe, not a file.",
        "socket": " is a socket, not a file.",
        "device": " is a device, not a file.",
        "UPPER": "",
        "inside": "",
    }


def test_split_files_are_one_model(tiny: Path, folder: Path) -> None:
    split(tiny, folder, 3, 3)
    (folder / "broken").mkdir()
    missing = split(tiny, folder / "broken", 2, 1)
    orphan = put(tiny, folder / "lost-00002-of-00002.gguf")
    found = look(folder)
    assert found["big-00001-of-00003"].facts
    assert found["big-00001-of-00003"].facts.weight_bytes == 3 * read_header(tiny).weight_bytes
    assert "big-00002-of-00002.gguf is missing" in found[missing.stem].problem
    assert set(found) == {"big-00001-of-00003", missing.stem, orphan.stem}


def test_a_part_that_changes_is_noticed(tiny: Path, folder: Path) -> None:
    first = split(tiny, folder, 2, 2)
    assert look(folder)[first.stem].facts
    (folder / "big-00002-of-00002.gguf").unlink()
    assert "is missing" in look(folder)[first.stem].problem


def test_loops_of_folders_end(tiny: Path, folder: Path) -> None:
    put(tiny, folder / "a/b/model.gguf")
    (folder / "a/b/back").symlink_to(folder)
    (folder / "a/twin").symlink_to(folder / "a/b")
    assert set(look(folder)) == {"model"}


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX users")
def test_folders_and_files_that_cannot_be_read_are_named(tiny: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # not below a folder that only we may enter
        top = Path(name)
        locked, secret = top / "locked", top / "secret.gguf"
        put(tiny, locked / "model.gguf")
        put(tiny, top / "open.gguf")
        put(tiny, secret)
        top.chmod(0o755)
        locked.chmod(0o000)
        secret.chmod(0o000)
        root = os.geteuid() == 0  # whom no mode keeps out
        if root:
            os.seteuid(65534)
        try:
            found = {f.name: f for f in scan([top]) if f.path.is_relative_to(top)}
        finally:
            if root:
                os.seteuid(0)
            locked.chmod(0o700)
    assert found["locked"].problem == "Cannot read this folder: Permission denied."
    assert "Permission denied" in found["secret"].problem
    assert found["open"].facts


def test_a_named_folder_that_is_missing_shows(folder: Path) -> None:
    assert "does not exist" in look(folder / "none")["none"].problem


def test_files_that_are_no_chat_models_say_so(tiny: Path, folder: Path) -> None:

    rewrite(tiny, folder / "lora.gguf", {"general.type": ("adapter", KIND.STRING)})
    data = tiny.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x04\0\0\0\0\0\0\0bert", 1)
    (folder / "embed.gguf").write_bytes(data + bytes(64))
    found = look(folder)
    assert "LoRA adapter; use it with --lora" in found["lora"].problem
    assert "embedding model" in found["embed"].problem


# -- what is kept between runs ---------------------------------------------------------


def test_a_second_look_reads_no_header(tiny: Path, folder: Path, monkeypatch) -> None:
    put(tiny, folder / "model.gguf")
    first = look(folder)
    monkeypatch.setattr("specchat.models.facts.read_header", None)
    assert look(folder) == first


def test_a_changed_file_is_read_again(tiny: Path, folder: Path) -> None:
    path = put(tiny, folder / "model.gguf")
    assert look(folder)["model"].facts
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut short" in look(folder)["model"].problem
    put(tiny, path)
    assert look(folder)["model"].facts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 99}',
        '{"version": 1, "files": 3}',
        "\0",
        "facts",
        "stamp",
        "tokenizer",
    ],
)
def test_a_damaged_cache_is_no_cache(tiny: Path, folder: Path, tmp_path: Path, text: str) -> None:
    path = put(tiny, folder / "model.gguf")
    file = tmp_path / "headers.json"
    cache = FactsCache(file)
    facts = cache.read(path)
    cache.save()
    if text in ("facts", "stamp", "tokenizer"):
        state = json.loads(file.read_text())
        entry = state["files"][str(path)]
        (entry["facts"] if text == "tokenizer" else entry)[text] = 3
        text = json.dumps(state)
    file.write_text(text)
    assert FactsCache(file).read(path) == facts == facts_of(read_header(path))


def test_a_cache_that_cannot_be_written_is_no_error(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = FactsCache(tmp_path / "file" / "headers.json")
    assert asdict(cache.read(tiny))["parameters"] > 0
    cache.save()


# -- damage ----------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["removed", "cut", "replaced", "a folder", "grown"])
def test_files_that_change_while_they_are_read_do_no_harm(
    tiny: Path, folder: Path, monkeypatch, change: str
) -> None:
    """Before each of the reads that a header takes in turn: a verdict, never an exception."""
    path, data = folder / "model.gguf", tiny.read_bytes()
    monkeypatch.setattr("specchat.engine.header_reader._PIECE", 512)
    fetch, reads, moment = _Reader.fetch, 0, -1

    def fetch_changing(reader: _Reader, start: int, length: int) -> bytes:
        nonlocal reads
        reads += reader.path == path
        if reader.path == path and reads == moment:
            if change in ("removed", "a folder"):
                path.unlink()
            if change == "a folder":
                path.mkdir()
            elif change != "removed":
                path.write_bytes(
                    {"cut": data[:40], "replaced": data[::-1], "grown": data * 2}[change]
                )
        return fetch(reader, start, length)

    monkeypatch.setattr(_Reader, "fetch", fetch_changing)
    problems = []
    for moment in count(1):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(data)
        reads = 0
        (found,) = (f for f in scan([folder]) if f.path == path)
        assert (found.facts is None) == bool(found.problem)
        problems.append(found.problem)
        if reads < moment:
            break  # the change would have come too late
    assert len(problems) > 10
    assert any(problems) == (change in ("cut", "replaced"))  # an open file can be read on
    assert problems[-1] == ""


def test_a_thousand_damaged_files_are_listed(tiny: Path, folder: Path) -> None:
    """Each in a file of a few GiB (a hole), so that large counts look possible."""
    data, rng = tiny.read_bytes(), np.random.default_rng(3)
    header_end = min(t.offset for t in read_header(tiny).tensors)
    path, problems = folder / "model.gguf", 0
    cache = FactsCache(folder / "cache.json")
    for number in range(1000):
        mutated = bytearray(data[:header_end])
        for _ in range(rng.integers(1, 4)):
            at, kind = int(rng.integers(4, header_end - 200)), rng.integers(3)
            if kind == 0:
                mutated[at] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                mutated[at : at + 8] = int(rng.integers(2 ** int(rng.integers(8, 63)))).to_bytes(
                    8, "little"
                )
            else:
                del mutated[at : at + int(rng.integers(1, 64))]
        with path.open("wb") as file:
            file.write(mutated)
            file.truncate(1 << 32)
        os.utime(path, ns=(number, number))
        (found,) = (f for f in scan([folder], cache=cache) if f.path == path)
        problems += found.facts is None
        assert (found.facts is None) == bool(found.problem)
        assert "\n" not in found.problem
    assert 300 < problems < 1000
