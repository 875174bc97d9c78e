"""models.toml: what is accepted, how files are merged, and where mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from specchat.engine.sampling import SamplingParams
from specchat.errors import RegistryError, UnknownModelError
from specchat.models.registry import ModelFile, Pair, Sampling, load_registry, packaged_path

GOOD = """
folders = ["more"]

[files.big]
repo = "owner/Big-GGUF"
file = "Big-Q4_K_M-00001-of-00003.gguf"
licence = "MIT"

[files.small]
path = "small.gguf"

[pairs.both]
target = "big"
draft = "small"
context = 4096
sampling.temperature = 0.6
"""


def write(folder: Path, text: str, name: str = "models.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_packaged_file_is_valid() -> None:
    registry = load_registry([packaged_path()])
    assert registry.pairs
    for pair in registry.pairs.values():
        for name in (pair.target, pair.draft):
            if name is not None:
                assert registry.files[name].repo
                assert registry.files[name].licence


def test_a_file_of_parts_names_them_all(tmp_path: Path) -> None:
    registry = load_registry([write(tmp_path, GOOD)])
    assert registry.files["big"].parts() == [f"Big-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


def test_relative_paths_are_meant_from_the_files_own_folder(tmp_path: Path) -> None:
    registry = load_registry([write(tmp_path, GOOD)])
    assert registry.files["small"].path == str(tmp_path / "small.gguf")
    assert registry.folders == (tmp_path / "more",)


def test_the_users_file_changes_single_keys(tmp_path: Path) -> None:
    user = '[pairs.both]\ncontext = 99\nsampling.top_k = 7\n[pairs.mine]\ntarget = "small"\n'
    registry = load_registry([write(tmp_path, GOOD), write(tmp_path, user, "user.toml")])
    both = registry.pairs["both"]
    assert (both.target, both.draft, both.context) == ("big", "small", 99)
    assert both.sampling.given() == {"temperature": 0.6, "top_k": 7}
    assert registry.pairs["mine"].draft is None


def test_missing_files_are_empty(tmp_path: Path) -> None:
    assert load_registry([tmp_path / "none.toml"]).pairs == {}


def test_the_names_of_sampling_are_the_engines() -> None:
    SamplingParams(**Sampling(temperature=0.1, top_k=3, min_p=0.1, penalty_last_n=9).given())
    assert set(Sampling.model_fields) < set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("context = 4096", 'context = "4096"'), 15, ["pairs.both.context", "integer"]),
        (("context = 4096", "context = -1"), 15, ["pairs.both.context", "0"]),
        (("context = 4096", "contxt = 4096"), 15, ["pairs.both.contxt"]),
        (("temperature = 0.6", "temperature = nan"), 16, ["sampling.temperature"]),
        (('"small"\nc', '"smoll"\nc'), 14, ["pairs.both.draft", "[files.smoll]"]),
        (('target = "big"\n', ""), 12, ["pairs.both.target", "required"]),
        (('"owner/Big-GGUF"', '"https://x.y/z"'), 5, ["files.big.repo"]),
        (("Big-Q4", "../../Big-Q4"), 6, ["files.big.file", "inside the repository"]),
        (('path = "small.gguf"', ""), 9, ["files.small", "repo and file, or path"]),
        (('licence = "MIT"', 'sha256 = """\nabc"""'), 8, ["files.big.sha256"]),
        (('["more"]', "[1]"), 2, ["folders"]),
    ],
)
def test_mistakes_name_file_line_and_key(tmp_path: Path, change, line: int, words) -> None:
    assert change[0] in GOOD
    good, bad = write(tmp_path, GOOD), write(tmp_path, GOOD.replace(*change), "bad.toml")
    for paths in ([bad], [good, bad]):
        if len(paths) == 2 and ("required" in words or "or path" in words[-1]):
            continue  # the other file has the key that is missing here
        with pytest.raises(RegistryError) as error:
            load_registry(paths)
        message = str(error.value)
        assert f"{bad}, line {line}, " in message
        assert "\n" not in message
        for word in words:
            assert word in message


@pytest.mark.parametrize(
    ("raw", "word"), [(b"a = 1\nb = =", "line 2"), (b"\xff", "UTF-8"), (b"pairs = 3", "pairs")]
)
def test_what_is_no_table_is_named(tmp_path: Path, raw: bytes, word: str) -> None:
    path = tmp_path / "models.toml"
    path.write_bytes(raw)
    with pytest.raises(RegistryError, match=word) as error:
        load_registry([path])
    assert str(path) in str(error.value)


def test_an_unknown_name_brings_the_nearest(tmp_path: Path) -> None:
    registry = load_registry([write(tmp_path, GOOD)])
    with pytest.raises(UnknownModelError, match=r"smol.* Did you mean small"):
        registry.pair("smol")
    assert registry.pair("small").draft is None


def test_every_key_is_documented(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    keys = [*ModelFile.model_fields, *Pair.model_fields, *Sampling.model_fields]
    assert [key for key in keys if f"{key} =" not in text and f"`{key}`" not in text] == []
    example = text.partition("```toml\n")[2].partition("```")[0]
    registry = load_registry([packaged_path(), write(tmp_path, example)])
    assert (registry.pair("mine").context, registry.pair("mine").draft) == (16384, "qwen3-0.6b")
