"""openai-python's own API tests, from its source on PyPI, against a running server.

Nothing of them is kept here. They were written for a mock that invents an answer to every
request; those that no server could pass that does what it says are listed here with the
error that each must get, and all others must pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openai
import pytest
from tiny_llama import write_tiny_llama

from specchat.engine.engine import Settings
from specchat.engine.llama import EmbeddingModel

FILES = (
    "chat/test_completions",
    "test_completions",
    "test_models",
    "test_responses",
    "test_embeddings",
)
DO = r"test_(method|raw_response|streaming_response)"
IMPOSSIBLE = (
    # What was never stored cannot be found, changed, deleted, cancelled or compacted.
    ("chat.test_completions", rf"{DO}_(retrieve|update|delete)\b", "404 - .* stores no answers"),
    ("test_responses", rf"{DO}_(retrieve|delete|cancel|compact)(_|\b)", "404 - .* stores no"),
    # These ask to go on from a stored response, in a stored conversation, in the background.
    ("test_responses", f"{DO}_create_with_all_params", "400 - .* stores no responses"),
    ("test_models", rf"{DO}_delete\b", "403 - .* cannot be deleted"),
    # The client asks for base64 by itself, and where it is told to be strict takes nothing
    # but a list of numbers for an answer: only a server that ignores the format passes.
    ("test_embeddings", rf"{DO}_create\[(strict|aiohttp)\]", "invalid for expected schema"),
)


@pytest.fixture(scope="module")
def suite(downloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source of the openai package that is installed, fetched once."""
    name = f"openai-{openai.__version__}"
    archive = downloads / f"{name}.tar.gz"
    if not archive.exists():
        found = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--no-binary", "openai", "--dest", downloads, name.replace("-", "==")),
            ],
            capture_output=True,
            text=True,
        )
        if found.returncode:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(
                f"cannot fetch the source of {name}: {found.stderr[-500:]}"
            )
    folder = tmp_path_factory.mktemp("suite")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / name


def test_the_client_library_finds_what_it_expects(
    suite: Path, serve_with: Callable[..., Any], tmp_path: Path
) -> None:
    write_tiny_llama(tmp_path / "embed.gguf", pooling=1)
    embedder = EmbeddingModel.load(tmp_path / "embed.gguf", threads=1)
    report = tmp_path / "report.xml"
    brief = Settings(max_tokens=2, draft_length=0)  # shapes are tested, not what a model says
    with serve_with(embedder=embedder, defaults=brief) as endpoint:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
                *("-o", "addopts=", f"--junitxml={report}"),
                *(f"tests/api_resources/{file}.py" for file in FILES),
            ],
            cwd=suite,
            env={**os.environ, "TEST_API_BASE_URL": f"{endpoint.url}/v1", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=600,
        )
    embedder.close()
    assert report.exists(), run.stdout[-3000:] + run.stderr[-3000:]
    passed, wrong = 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.attrib["classname"].removeprefix("tests.api_resources.").rpartition(".")[0]
        problem = case[0].attrib.get("message", case[0].tag) if len(case) else None
        error = required_error(file, case.attrib["name"])
        if error is None:
            passed += problem is None
        if not (problem == error if None in (problem, error) else re.search(error, problem)):
            wrong.append(f"{file} {case.attrib['name']}: {problem}")
    assert not wrong, "\n".join(wrong) + run.stdout[-5000:]
    assert passed > 200


def required_error(file: str, name: str) -> str | None:
    """A pattern of the error that this test must get; None if it must pass."""
    for where, which, error in IMPOSSIBLE:
        if where == file and re.match(which, name):
            return error
    return None
