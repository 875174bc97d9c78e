"""Rules of the code that a linter does not know."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "specchat").rglob("*.py"))
UI = ("textual", "httpx", "starlette", "fastapi", "uvicorn")
LONG: dict[str, int] = {}  # every file stays within 400 lines


def loaded_by(code: str) -> set[str]:
    """Top-level modules that are loaded after running `code` in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint('\\n'.join(m.partition('.')[0] for m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import specchat.engine.engine, specchat.engine.service",
        "from specchat.cli.main import main\nmain(['-p', 'hi', '-n', '1', '-q'])",
    ],
)
def test_engine_and_ask_never_import_a_user_interface(code: str) -> None:
    assert not loaded_by(code) & set(UI)


def test_help_does_not_load_llama_cpp() -> None:
    code = "from specchat.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not loaded_by(code) & {"llama_cpp", "numpy", *UI}


def test_only_the_llama_package_touches_ctypes() -> None:
    pattern = re.compile(r"import ctypes|llama_cpp\.llama_cpp")
    users = {p.parent.name for p in SOURCES if pattern.search(p.read_text())}
    assert users == {"llama"}


def test_files_stay_readable() -> None:
    lengths = {p.name: len(p.read_text().splitlines()) for p in SOURCES}
    assert not {n: length for n, length in lengths.items() if length > LONG.get(n, 400)}


def test_no_machine_paths_in_the_repository() -> None:
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(r"/work/(?!flow)|/root/|/home/\w+/")
    here = Path(__file__).name
    texts = [f for f in files if Path(f).suffix in {".py", ".md", ".toml", ".svg", ".json", ""}]
    found = [f for f in texts if Path(f).name != here and pattern.search((ROOT / f).read_text())]
    assert not found
