"""What a benchmark found: a table, a JSON file, a plot."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from specchat.bench.runner import PLAIN, Run, mean, ratio
from specchat.engine.engine import Engine
from specchat.errors import BadRequestError

CONSTRUCTED = "The target is a constructed benchmark model, not a real one."
_LENGTHS = range(1, 18)  # tokens in a target call, for the cost curve


def table(runs: Sequence[Run], temperature: float) -> Table:
    """By kind and arm: speed relative to plain with its interval, tok/call, acceptance."""
    arms = list(dict.fromkeys(r.arm for r in runs if r.arm != PLAIN))
    kinds = list(dict.fromkeys(r.kind for r in runs))
    grid = Table(title=f"Temperature {temperature:g}: tok/s relative to plain (95 % interval)")
    for title in ("kind", "plain tok/s", *arms):
        grid.add_column(title, justify="left" if title == "kind" else "right")
    for kind in [*kinds, None]:
        cells = [f"{mean(runs, PLAIN, kind, temperature, 'tokens_per_second'):.1f}"]
        for arm in arms:
            r = ratio(runs, arm, kind, temperature)
            per_call = mean(runs, arm, kind, temperature, "tokens_per_call")
            kept = mean(runs, arm, kind, temperature, "acceptance")
            share = "" if kept != kept else f", {kept:.0%}"
            cells.append(
                f"{r.median:.2f} ({r.low:.2f}-{r.high:.2f})\n{per_call:.2f}/call{share}"
                if r
                else "-"
            )
        grid.add_row(kind or "all", *cells, end_section=kind == kinds[-1])
    return grid


def document(engine: Engine, runs: Sequence[Run], tokens: int) -> dict[str, Any]:
    """Everything, for machines: what ran, on what, every answer."""
    costs = engine.calibration.costs
    return {
        "target": _model(engine.target.path.name, engine.header),
        "draft": engine.draft.path.name if engine.draft else None,
        "constructed_target": bool(engine.header and engine.header.constructed),
        "machine": {
            "processor": _processor(),
            "threads": engine.target.options.threads or os.cpu_count(),
            "llama_cpp_python": version("llama-cpp-python"),
        },
        "tokens": tokens,
        "verify_seconds": {n: costs.target.seconds(n, 0) for n in _LENGTHS},
        "draft_step_seconds": costs.draft.seconds(1, 0) if costs.draft else None,
        "runs": [asdict(r) for r in runs],
    }


def _model(name: str, header: Any) -> dict[str, Any]:
    return {"file": name, "type": header.quantisation, "parameters": header.parameters}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def save_json(path: Path, content: dict[str, Any]) -> None:
    """Raises BadRequestError where the file cannot be written."""
    try:
        path.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise BadRequestError(f"Cannot write {path}: {error.strerror}.") from None


def plot(path: Path, content: dict[str, Any]) -> None:
    """Speed by kind and arm, and the cost curve; the ending names the format."""
    try:
        import matplotlib
    except ImportError:
        raise BadRequestError(
            "Plots need matplotlib: pip install 'specchat[bench]'", "plot"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    runs = [Run(**r) for r in content["runs"]]
    temperatures = sorted({r.temperature for r in runs})
    kinds = list(dict.fromkeys(r.kind for r in runs))
    arms = [a for a in dict.fromkeys(r.arm for r in runs) if a != PLAIN]
    figure, axes = plt.subplots(1, len(temperatures) + 1, figsize=(5.2 * len(temperatures) + 4, 4))
    colours = plt.get_cmap("cividis")
    for axis, temperature in zip(axes, temperatures, strict=False):
        for i, arm in enumerate(arms):
            found = [ratio(runs, arm, kind, temperature) for kind in kinds]
            x = [k + (i - len(arms) / 2) * 0.8 / len(arms) for k in range(len(kinds))]
            y = [r.median if r else float("nan") for r in found]
            errors = [
                [r.median - r.low if r else 0 for r in found],
                [r.high - r.median if r else 0 for r in found],
            ]
            axis.errorbar(
                x, y, errors, fmt="D" if arm == "auto" else "o", ms=4, lw=1,
                color="#d55e00" if arm == "auto" else colours(i / len(arms)), label=arm,
            )  # fmt: skip
        axis.axhline(1.0, color="0.4", lw=1, ls=":")
        axis.set_xticks(range(len(kinds)), kinds, rotation=20)
        axis.set_title(f"temperature {temperature:g}: speed relative to plain")
    axes[0].legend(fontsize=7, ncols=2)
    cost = {int(n): t for n, t in content["verify_seconds"].items()}
    axes[-1].plot(list(cost), [t / cost[1] for t in cost.values()], marker="o", ms=3)
    axes[-1].set_title("cost of a target call")
    axes[-1].set_xlabel("tokens in the call")
    axes[-1].set_ylabel("relative to one token")
    if content["constructed_target"]:
        figure.text(0.01, 0.01, CONSTRUCTED, fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
