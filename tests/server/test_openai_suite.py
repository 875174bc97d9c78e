"""openai-python's own API tests, from its source on PyPI, against a running server.

Nothing of them is kept here. What needs stored objects is left out: this server keeps
nothing of what it is asked and answers.
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
import platformdirs
import pytest
from tiny_llama import write_tiny_llama

from specchat.engine.llama import EmbeddingModel

FILES = (
    "chat/test_completions",
    "test_completions",
    "test_models",
    "test_responses",
    "test_embeddings",
)
# By file: tests that fetch, change, delete or continue what an earlier request left behind.
STORED = {
    "chat.test_completions": r"_(retrieve|update|delete)$",
    "test_models": r"_delete$",
    "test_responses": r"_(retrieve|delete|cancel|compact)(_|$)|create_with_all_params",
}
# The client asks for base64 by itself, and where it is told to be strict takes nothing but
# a list of numbers for an answer.
CONTRADICTORY = r"test_embeddings\..*_create\[(strict|aiohttp)"


@pytest.fixture(scope="module")
def suite() -> Path:
    """The unpacked source of the openai package that is installed, fetched once."""
    name = f"openai-{openai.__version__}"
    folder = Path(platformdirs.user_cache_dir("specchat-tests"))
    if not (folder / name / "tests").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        found = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--no-binary", "openai", "--dest", folder, name.replace("-", "==")),
            ],
            capture_output=True,
            text=True,
        )
        if found.returncode:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(
                f"cannot fetch the source of {name}: {found.stderr[-500:]}"
            )
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def test_the_client_library_finds_what_it_expects(
    suite: Path, serve_with: Callable[..., Any], tmp_path: Path
) -> None:
    write_tiny_llama(tmp_path / "embed.gguf", pooling=1)
    embedder = EmbeddingModel.load(tmp_path / "embed.gguf", threads=1)
    report = tmp_path / "report.xml"
    with serve_with(embedder=embedder) as endpoint:
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
    passed, failed = [], []
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.attrib["classname"].removeprefix("tests.api_resources.").rpartition(".")[0]
        name = f"{file}.{case.attrib['name']}"
        bare = re.sub(r"(_overload_\d)?\[.*", "", case.attrib["name"])
        if not re.search(STORED.get(file, "$^"), bare) and not re.search(CONTRADICTORY, name):
            (failed if len(case) else passed).append(name)
    assert not failed, "\n".join(failed) + run.stdout[-5000:]
    assert len(passed) >= 150
    print(f"{len(passed)} of openai-python's tests pass")
