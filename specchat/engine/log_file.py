"""Where llama.cpp's log goes; apart, so that to know it needs no llama.cpp."""

from __future__ import annotations

from pathlib import Path

import platformdirs


def log_path() -> Path:
    return Path(platformdirs.user_log_dir("specchat")) / "llama.log"
