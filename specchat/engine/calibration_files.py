"""Where calibrations lie, which models they are about, and how to read one without loading
a model. They are written by `calibration.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from specchat.engine.costs import Curve, PairCosts

VERSION = 1  # of the file; another version is measured anew


@dataclass(frozen=True, slots=True)
class Kept:
    """One pair's calibration: the `files` it is about (target, draft if there was one), cost
    curves, and how many draft tokens were judged and kept by the sampling key.
    """

    files: list[list[Any]]
    costs: PairCosts
    judged: Mapping[str, tuple[float, float]]


def folder() -> Path:
    """Where calibrations are kept: a JSON file for each pair, its settings and threads."""
    return Path(platformdirs.user_cache_dir("specchat")) / "calibration"


def file_identity(path: Path) -> list[Any]:
    """Name, size and time of change (seconds) of a file, as in `Kept.files`."""
    file = path.stat()
    return [path.name, file.st_size, int(file.st_mtime)]


def kept_calibrations() -> Iterator[Kept]:
    """All that can be read, the latest first."""
    try:
        paths = sorted(folder().glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    except OSError:
        return
    for path in paths:
        try:
            state = json.loads(path.read_text())
            if state["version"] == VERSION:
                yield _kept(state)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # an older one, or another run is just replacing it


def _kept(state: Mapping[str, Any]) -> Kept:
    judged = {
        key: (sum(by_name["draft"]["count"]), sum(by_name["draft"]["kept"]))
        for key, by_name in state["acceptance"].items()
        if "draft" in by_name
    }
    return Kept([list(f) for f in state["files"]], read_costs(state), judged)


def read_costs(state: Mapping[str, Any]) -> PairCosts:
    """Raises KeyError, TypeError, ValueError or AttributeError for a damaged state."""
    return PairCosts(_curve(state["target"]), _curve(state["draft"]), float(state["overhead"]))


def _curve(points: Mapping[str, Mapping[str, list[float]]]) -> Curve:
    return Curve(
        {
            int(depth): {int(n): [float(t) for t in times if t > 0] for n, times in row.items()}
            for depth, row in points.items()
        }
    )
