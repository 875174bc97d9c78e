"""Cost curves and acceptance of a pair, kept in the user's cache between runs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specchat.engine.acceptance import Acceptance
from specchat.engine.batch import drive
from specchat.engine.calibration_files import VERSION, file_identity, folder, read_costs
from specchat.engine.controller import restore
from specchat.engine.costs import LENGTHS, Curve, PairCosts, measure
from specchat.engine.llama import LlamaModel, ModelOptions, default_threads
from specchat.engine.model import Cache

_BUDGET = 0.8  # seconds for a target that was never measured
_CHECK_BUDGET = 0.2  # seconds to see how fast the machine is today

log = logging.getLogger(__name__)

Memory = dict[str, dict[str, Acceptance]]  # by sampling key, then by drafter


class Calibration:
    """What is known of a pair: `costs`, and `memory` of acceptance by sampling key."""

    def __init__(self, target: LlamaModel, draft: LlamaModel | None, longest: int) -> None:
        """Reads the cache; a missing, foreign or damaged file just means measuring anew."""
        self.longest = longest
        self.path = folder() / f"{_key(target, draft)}.json"
        self._files = [file_identity(m.path) for m in (target, draft) if m is not None]
        self.costs = PairCosts()
        self.memory: Memory = {}
        try:
            self._read(json.loads(self.path.read_text()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("ignoring %s: %s", self.path, error)
            self.costs, self.memory = PairCosts(), {}

    def measure(self, target: Cache, draft: Cache | None) -> None:
        """Measure both models, in under a second; only a check where the curve is known.

        Caches must be empty.
        """
        curve = self.costs.target
        if curve:
            self._check(target)
        else:
            list(drive(measure(target, curve, _BUDGET)))
        if draft is not None:
            list(drive(measure(draft, self.costs.draft, _CHECK_BUDGET, (1, 1, 1, 2))))

    def _check(self, target: Cache) -> None:
        """How fast is the machine today? And measure again what was measured least."""
        curve, today = self.costs.target, Curve()
        known = curve.points.get(0, {})
        least = sorted(LENGTHS, key=lambda n: len(known.get(n, ())))
        list(drive(measure(target, today, _CHECK_BUDGET, (1, *least))))
        found = {n: min(times) for n, times in today.points[0].items()}
        speed = found[1] / curve.seconds(1, 0)
        for n, seconds in found.items():
            curve.observe(n, 0, seconds)
            curve.add(0, n, seconds / speed)

    def measure_again(self, target: Cache, draft: Cache | None) -> None:
        """Forget the curves and acceptance of earlier runs, and measure anew."""
        self.costs, self.memory = PairCosts(), {}
        self.measure(target, draft)

    def acceptance(self, key: str) -> dict[str, Acceptance]:
        """Estimates by drafter name under a rule and temperature, named by `key`."""
        return self.memory.setdefault(key, {})

    def save(self) -> None:
        """Write atomically; a read-only cache folder is no error."""
        for curve in (self.costs.target, self.costs.draft):
            if curve:
                curve.absorb()
        state = {
            "version": VERSION,
            "files": self._files,
            "target": self.costs.target.points,
            "draft": self.costs.draft.points,
            "overhead": self.costs.overhead,
            "acceptance": {
                key: {name: a.state() for name, a in by_name.items()}
                for key, by_name in self.memory.items()
            },
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(state))
            temporary.replace(self.path)
        except OSError as error:
            log.warning("cannot keep the calibration: %s", error)

    def _read(self, state: Mapping[str, Any]) -> None:
        if state["version"] != VERSION:
            return
        self.costs = read_costs(state)
        for key, by_name in state["acceptance"].items():
            restore(self.acceptance(key), by_name, self.longest)


def _key(target: LlamaModel, draft: LlamaModel | None) -> str:
    """Names the files, settings and threads that the measurements hold for."""
    parts = [_identity(target.path, target.options)]
    if draft is not None:
        parts.append(_identity(draft.path, draft.options))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _identity(path: Path, options: ModelOptions) -> list[Any]:
    settings = asdict(options) | {"n_ctx": 0, "threads": options.threads or default_threads()}
    return [*file_identity(path), settings]
