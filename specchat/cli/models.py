"""`specchat models`: which models this machine has, and which draft suits a target."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.errors import ModelFileError

if TYPE_CHECKING:
    from specchat.models.discovery import Found
    from specchat.models.local import PairStatus
    from specchat.models.ranking import RankedDraft
    from specchat.models.registry import Registry

_FORMULA = (
    "Predictions, not measurements: the largest over draft lengths k of "
    "(1 + a + … + a^k) / (v(k+1) + k·c), with a the acceptance, c a draft step and v(n) a "
    "call with n tokens, both relative to a target call with one."
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "models", help="list the models of this machine", description=__doc__
    )
    _common(parser)
    parser.set_defaults(run=run)
    commands = parser.add_subparsers(metavar="{pair}")
    pair = commands.add_parser("pair", help="rank the local drafts for a target")
    pair.add_argument("target", metavar="TARGET", help="a GGUF file or a known name")
    _common(pair)
    pair.set_defaults(run=run_pair)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--folder",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="look here too; repeatable (for always: folders in models.toml)",
    )


def run(args: argparse.Namespace) -> int:
    """List files with their facts or what is wrong with them, and the named pairs."""
    from specchat.models.discovery import discover
    from specchat.models.local import statuses
    from specchat.models.registry import load_registry

    registry = load_registry()
    found = discover([*args.folder, *registry.folders])
    pairs = statuses(registry, found)
    if args.json:
        _print_json(
            {"files": [_file(f) for f in found], "pairs": [_pair(registry, p) for p in pairs]}
        )
    else:
        _show(registry, found, pairs)
    return 0


def run_pair(args: argparse.Namespace) -> int:
    """Rank the drafts for a target. Raises ModelFileError or UnknownModelError for what is no
    target.
    """
    from specchat.cli.names import is_path
    from specchat.models.discovery import discover
    from specchat.models.naming import resolve
    from specchat.models.ranking import rank_drafts
    from specchat.models.registry import load_registry

    registry = load_registry()
    named = [Path(args.target)] if is_path(args.target) else []
    found = discover([*args.folder, *registry.folders], files=named)
    path = named[0] if named else None
    if path is None:
        path = resolve(args.target, draft=False, registry=registry, found=found).target
    target = next(f for f in found if f.path == path)
    if target.facts is None:
        raise ModelFileError(target.problem)
    ranked = rank_drafts(target, found)
    if args.json:
        _print_json({"target": _file(target), "drafts": [_ranked(r) for r in ranked]})
    else:
        _show_ranked(target, ranked)
    return 0


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=1))


def _file(found: Found) -> dict[str, Any]:
    facts = asdict(found.facts) if found.facts else None
    return {
        "name": found.name,
        "path": str(found.path),
        "program": found.program,
        "facts": facts,
        "problem": found.problem or None,
    }


def _pair(registry: Registry, status: PairStatus) -> dict[str, Any]:
    files = {name: registry.files[name] for name in (status.pair.target, status.pair.draft) if name}
    return {
        "name": status.name,
        **status.pair.model_dump(exclude_none=True),
        "ready": status.ready,
        "missing": list(status.missing),
        "problem": status.problem or None,
        "files": {name: file.model_dump(exclude_none=True) for name, file in files.items()},
    }


def _ranked(draft: RankedDraft) -> dict[str, Any]:
    fits = draft.fit.fits
    return {
        "name": draft.found.name,
        "path": str(draft.found.path),
        "fits": fits,
        "reason": draft.fit.reason or None,
        "predicted_speedup": draft.speedup if fits else None,
        "draft_length": draft.length if fits else None,
        "acceptance": draft.acceptance if fits else None,
        "step_cost": draft.step if fits else None,
        "basis": draft.basis or None,
    }


def _show(registry: Registry, found: Sequence[Found], pairs: Sequence[PairStatus]) -> None:
    from specchat.cli.tables import console, size, table
    from specchat.models.registry import user_path

    out = console()
    rows = table(
        "name", "size>", "type", "parameters>", "context>", "template", "vocabulary", "from"
    )
    for f in found:
        if f.facts is not None:
            rows.add_row(
                f.name,
                size(f.facts.weight_bytes),
                f.facts.file_type,
                f"{f.facts.parameters / 1e6:,.0f} M",
                f"{f.facts.context:,}" if f.facts.context else "?",
                f.facts.template,
                f.facts.fingerprint[:8],
                f.program or str(f.path.parent),
            )
    out.print(rows if rows.row_count else "There is no model on this machine yet.")
    bad = [f for f in found if f.facts is None]
    if bad:
        out.print("")
        out.print("Not usable:")
    for f in bad:
        out.print(f"  {f.problem if str(f.path) in f.problem else f'{f.path}: {f.problem}'}")
    rows = table("pair", "target", "draft", "state")
    for p in pairs:
        rows.add_row(p.name, p.pair.target, p.pair.draft or "none", _state(registry, p))
    if pairs:
        out.print("")
        out.print("Known pairs (-m NAME uses one, specchat pull NAME downloads it):")
        out.print(rows)
    out.print("")
    out.print(f"Your own pairs and folders: {user_path()}")


def _state(registry: Registry, status: PairStatus) -> str:
    from specchat.cli.tables import size

    if status.problem:
        return status.problem
    sizes = [registry.files[name].size for name in status.missing]
    if not sizes:
        return "ready"
    known = f" ({size(sum(s or 0 for s in sizes))})" if all(sizes) else ""
    return f"to download: {', '.join(status.missing)}{known}"


def _show_ranked(target: Found, ranked: Sequence[RankedDraft]) -> None:
    from specchat.cli.tables import console, size, table

    assert target.facts is not None
    out = console()
    out.print(f"Drafts for {target.name} ({target.facts.file_type}):")
    rows = table(
        "draft", "size>", "predicted speedup>", "at draft length>", "acceptance>", "step cost>",
        "from",
    )  # fmt: skip
    fitting = [r for r in ranked if r.fit.fits and r.found.facts]
    for r in fitting:
        assert r.found.facts is not None
        rows.add_row(
            r.found.name,
            size(r.found.facts.weight_bytes),
            f"{r.speedup:.2f}×",
            str(r.length),
            f"{r.acceptance:.2f}",
            f"{r.step:.3f}",
            r.basis,
        )
    out.print(rows if fitting else "none on this machine fits (lookup drafting needs none)")
    refused = [r for r in ranked if not r.fit.fits]
    if refused:
        out.print("")
        out.print("Refused:")
    for r in refused:
        out.print(f"  {r.found.name}: {r.fit.reason}")
    if fitting:
        out.print("")
        out.print(_FORMULA)
        best = fitting[0].found.path
        out.print(f"Measure: specchat bench run -m {target.path} -d {best}", soft_wrap=True)
