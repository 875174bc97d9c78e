"""`specchat bench`: is drafting faster on this pair and machine, and by how much?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from specchat.cli import options
from specchat.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specchat.engine.engine import Engine

_KINDS = ("chat", "code edit", "summarise", "json", "rewrite", "random")
_ARMS = ("plain", "2", "4", "6", "8", "auto", "lookup", "draft+lookup")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench", help="measure draft lengths on a pair", description=__doc__
    )
    commands = parser.add_subparsers(metavar="{run,sweep,overhead,compare}", required=True)

    run_ = commands.add_parser("run", help="plain, fixed and automatic draft lengths, interleaved")
    _common(run_)
    run_.add_argument("--kinds", nargs="+", default=list(_KINDS), choices=_KINDS, metavar="KIND")
    run_.add_argument("--arms", nargs="+", default=list(_ARMS), choices=_ARMS, metavar="ARM")
    run_.add_argument("--json", type=Path, metavar="FILE", help="every answer's figures")
    run_.add_argument("--plot", type=Path, metavar="FILE", help="a .png or .svg")
    run_.set_defaults(run=run)

    sweep = commands.add_parser("sweep", help="the simulation's table on a real pair")
    _common(sweep)
    sweep.set_defaults(run=run_sweep)

    overhead = commands.add_parser("overhead", help="our plain decoding against a bare loop")
    options.add_model_flags(overhead)
    overhead.add_argument("--blocks", type=int, default=30, help="of 32 tokens (default 30)")
    overhead.set_defaults(run=run_overhead)

    compare = commands.add_parser("compare", help="against an OpenAI-compatible server")
    compare.add_argument("address", help="like http://127.0.0.1:8080")
    _common(compare)
    compare.add_argument("--kinds", nargs="+", default=list(_KINDS), choices=_KINDS, metavar="KIND")
    compare.set_defaults(run=run_compare)


def _common(parser: argparse.ArgumentParser) -> None:
    options.add_model_flags(parser)
    parser.add_argument(
        "--fixture",
        metavar="TYPE:FACTOR:EPS",
        help="use a constructed target made of the embedded model, like BF16:6:0.02",
    )
    parser.add_argument("--hostile", action="store_true", help="with a draft of random weights")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8], metavar="T")
    parser.add_argument("--tokens", type=int, default=100, help="per answer (default 100)")
    parser.add_argument("--repeat", type=int, default=1, help="repetitions (default 1)")


@contextmanager
def _engine(args: argparse.Namespace, console: Console) -> Iterator[Engine]:
    """The engine to measure, with its cost curves measured afresh."""
    from specchat.bench.fixtures import hostile_draft, standard_fixture
    from specchat.bench.report import CONSTRUCTED

    for name in ("tokens", "repeat"):
        if getattr(args, name, 1) < 1:
            raise BadRequestError(f"--{name} must be at least 1.", name)
    folder = _cache_folder()
    if getattr(args, "fixture", None):
        if args.model or args.draft:
            raise BadRequestError("--fixture brings its own models: leave out -m and -d.")
        kind, factor, eps = _parse_fixture(args.fixture)
        target, draft = standard_fixture(folder, kind, factor, eps)
        args.model, args.draft = str(target), str(draft)
    if getattr(args, "hostile", False):
        args.model = args.model or str(options.target_path(args))
        args.draft = str(hostile_draft(folder))
    args.ctx = args.ctx or 2048
    with options.load_engine(args) as engine:
        if engine.header is not None and engine.header.constructed:
            console.print(CONSTRUCTED)
        engine.calibrate_afresh()
        yield engine


def _parse_fixture(text: str) -> tuple[str, int, float]:
    try:
        kind, factor, eps = text.split(":")
        return kind.upper(), int(factor), float(eps)
    except ValueError:
        raise BadRequestError(f"--fixture {text!r} is not like BF16:6:0.02.", "fixture") from None


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("specchat")) / "bench"


@contextmanager
def _ticking(console: Console, total: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.completed}/{task.total}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def run(args: argparse.Namespace) -> int:
    from specchat.bench import report, runner

    console = Console(highlight=False)
    arms = list(dict.fromkeys(["plain", *args.arms]))
    with _engine(args, console) as engine:
        if engine.draft is None:
            arms = [arm for arm in arms if arm in ("plain", "lookup")]
        order = runner.plan(args.kinds, arms, args.temperatures, args.repeat)
        with _ticking(console, len(order)) as tick:
            runs = list(runner.run(engine, order, args.tokens, tick))
        for temperature in args.temperatures:
            console.print(report.table(runs, temperature))
        reasons = dict.fromkeys(
            r.reason for r in runs if r.arm == "auto" and r.tokens_per_call < 1.1
        )
        for reason in list(reasons)[:3]:
            console.print(f"auto stayed near zero: {reason}", markup=False)
        content = report.document(engine, runs, args.tokens)
    if args.json:
        report.save_json(args.json, content)
    if args.plot:
        report.plot(args.plot, content)
    return 0


def run_sweep(args: argparse.Namespace) -> int:
    from specchat.bench import sweep
    from specchat.bench.prompts import PROMPTS

    console = Console(highlight=False)
    with _engine(args, console) as engine:
        if engine.draft is None:
            raise BadRequestError("bench sweep needs a draft: name one with -d, or use --fixture.")
        for temperature in args.temperatures:
            with _ticking(console, len(PROMPTS) * len(sweep.LENGTHS)) as tick:
                lines = sweep.run(engine, temperature, args.tokens, tick)
            table = Table(title=f"Temperature {temperature:g}")
            for title in (
                "draft length", "tokens", "target calls", "acceptance", "tok/call",
                "speedup by calls", "speedup by time",
            ):  # fmt: skip
                table.add_column(title, justify="right")
            plain = lines[0]
            for line in lines:
                table.add_row(
                    str(line.draft_length),
                    str(line.tokens),
                    str(line.target_calls),
                    f"{line.accepted / line.drafted:.0%}" if line.drafted else "-",
                    f"{line.tokens_per_call:.2f}",
                    f"{line.tokens_per_call / plain.tokens_per_call:.2f}x",
                    f"{line.tokens_per_second / plain.tokens_per_second:.2f}x",
                )
            console.print(table)
    return 0


def run_overhead(args: argparse.Namespace) -> int:
    from specchat.bench import overhead

    console = Console(highlight=False)
    if args.blocks < 1:
        raise BadRequestError("--blocks must be at least 1.", "blocks")
    args.ctx = args.ctx or 512
    with options.load_engine(args) as engine:
        model = engine.target
        engine.release_slots()
        with _ticking(console, args.blocks) as tick:
            found = overhead.measure(model, args.blocks, tick)
        table = Table(title=f"{model.path.name}, {model.n_vocab:,} tokens in the vocabulary")
        for title in ("decoding", "ms per token", "added µs", "added"):
            table.add_column(title, justify="right")
        for way in found:
            share = way.extra / found[0].seconds
            table.add_row(
                way.name, f"{1e3 * way.seconds:.2f}", f"{1e6 * way.extra:.0f}", f"{share:.1%}"
            )
        console.print(table)
    return 0


def run_compare(args: argparse.Namespace) -> int:
    from specchat.bench import compare
    from specchat.bench.prompts import PROMPTS
    from specchat.bench.runner import interval

    console = Console(highlight=False)
    kinds, temperatures = tuple(args.kinds), tuple(args.temperatures)
    with _engine(args, console) as engine:
        total = sum(len(PROMPTS[kind]) for kind in kinds) * len(temperatures) * args.repeat
        with _ticking(console, total) as tick:
            pairs = list(
                compare.run(
                    engine, args.address, kinds, temperatures, args.tokens, args.repeat, tick
                )
            )
    table = Table(title=f"Our tok/s relative to {args.address} (median, 95 % interval)")
    table.add_column("kind")
    for temperature in temperatures:
        table.add_column(f"temperature {temperature:g}", justify="right")
    for kind in (*kinds, None):
        cells = []
        for temperature in temperatures:
            chosen = [p for p in pairs if kind in (None, p.kind) and p.temperature == temperature]
            r = interval([p.ours / p.theirs for p in chosen])
            cells.append(f"{r.median:.2f} ({r.low:.2f}-{r.high:.2f})")
        table.add_row(kind or "all", *cells, end_section=kind == kinds[-1])
    console.print(table)
    return 0
