"""Questions that were not sent when the app closed, kept beside the history until it opens."""

from __future__ import annotations

import json
from pathlib import Path


def _path(history: Path) -> Path:
    return history.with_name("unsent.json")


def keep(history: Path | None, texts: list[str]) -> None:
    """Add `texts` to those that are kept; without a history's file they cannot be.
    Raises OSError.
    """
    texts = [text for text in texts if text.strip()]
    if history is not None and texts:
        kept = json.dumps([*_read(history), *texts])
        _path(history).write_text(kept, encoding="utf-8")


def bring_back(history: Path | None) -> list[str]:
    """What was kept, oldest first; it is kept no longer."""
    if history is None:
        return []
    texts = _read(history)
    try:
        _path(history).unlink(missing_ok=True)
    except OSError:
        return []  # else every start would bring them back
    return texts


def _read(history: Path) -> list[str]:
    """Nothing where there is no such file or something else is in it."""
    try:
        found = json.loads(_path(history).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
