"""`specchat distill`: train a small draft for a target, on what the target itself says.

It takes --hours in all and may be stopped with Ctrl-C at any time: the same command goes on
from there. Nothing is downloaded, and stored chats are used only with --from-history.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from specchat.cli import options, tables
from specchat.errors import BadRequestError

if TYPE_CHECKING:
    from rich.console import Console

    from specchat.distill.evaluate import Worth
    from specchat.distill.train import Progress as Trained

_TYPES = ("BF16", "Q8_0", "Q4_0")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "distill", help="train a small draft for a target", description=__doc__
    )
    add = parser.add_argument
    add("-m", "--model", metavar="GGUF", help="target (default: the embedded one)")
    add("-o", "--output", type=Path, required=True, metavar="GGUF", help="the draft to write")
    add("--hours", type=float, default=1.0, metavar="H", help="time in all (default 1)")
    add("--layers", type=int, metavar="L", help="default: by what a step costs")
    add("--width", type=int, metavar="D", help="a multiple of 64; default: by what a step costs")
    add("--type", choices=_TYPES, default="Q8_0", help="of the weights (default Q8_0)")
    add("--corpus", type=Path, metavar="DIR", help="let the target go on with these texts too")
    add("--from-history", action="store_true", help="let it answer your stored chats too")
    add("--parallel", type=int, default=16, metavar="N", help="answers at a time (default 16)")
    add("--threads", type=int, default=0, metavar="N", help="default: all cores")
    add("--steps", type=int, metavar="N", help="train exactly so many (default: what time allows)")
    add("--tokens", type=int, metavar="N", help="collect at most so many")
    add("--questions", type=int, default=6, metavar="N", help="to measure speed with (default 6)")
    parser.set_defaults(run=run, draft=None)


def run(args: argparse.Namespace) -> int:
    from specchat.distill.run import Order, distill
    from specchat.distill.stopping import StopSignals

    for name, least in (("steps", 1), ("tokens", 1), ("questions", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise BadRequestError(f"--{name} must be at least {least}, not {value}.", name)
    order = Order(
        target=options.target_path(args),
        output=args.output,
        hours=args.hours,
        width=args.width,
        layers=args.layers,
        kind=args.type,
        corpus=args.corpus,
        from_history=args.from_history,
        parallel=args.parallel,
        threads=args.threads,
        steps=args.steps,
        tokens=args.tokens,
        questions=args.questions,
    )
    console = tables.console()
    with StopSignals() as signals, _Shown(console) as shown:
        worth = distill(order, signals.asked, shown)
    _print(console, worth, order.output)
    return 0


class _Shown:
    """Progress on a terminal: a bar with the time left, and a line for every measurement."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}", markup=False), BarColumn(),
            TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not sys.stdout.isatty()
        )
        self._task = self._bar.add_task("", total=1.0, visible=False)
        self._phase = ""

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.update(self._task, visible=False)
        self._console.print(text)

    def collected(self, tokens: int, share: float) -> None:
        self._move("collecting", f"collecting: {tokens:,} tokens", share)

    def trained(self, progress: Trained) -> None:
        if progress.acceptance is not None:
            self._console.print(
                f"step {progress.step} of {progress.steps or '?'}: held-out acceptance "
                f"{progress.acceptance:.1%}, best {progress.best:.1%}"
            )
        share = progress.step / progress.steps if progress.steps else 0.0
        self._move("training", f"training: step {progress.step}", share)

    def evaluated(self, share: float) -> None:
        self._move("measuring", "measuring what it is worth", share)

    def _move(self, phase: str, text: str, share: float) -> None:
        if phase != self._phase:
            self._phase = phase
            self._bar.reset(self._task, total=1.0, visible=True)
        self._bar.update(self._task, description=text, completed=share)


def _print(console: Console, worth: list[Worth], output: Path) -> None:
    table = tables.table(
        "temperature>", "acceptance>", "best length>", "predicted>", "measured speedup>"
    )
    for w in worth:
        measured = "not measured"
        if w.measured is not None:
            measured = f"{w.measured.median:.2f}x ({w.measured.low:.2f}-{w.measured.high:.2f})"
        table.add_row(
            f"{w.temperature:g}", f"{w.acceptance:.1%}", str(w.draft_length),
            f"{w.predicted:.2f}x", measured,
        )  # fmt: skip
    console.print(table)
    console.print("Acceptance: of single tokens in answers that were kept out of training.")
    if max(w.predicted for w in worth) <= 1.02:
        console.print(
            "On this machine this draft hardly pays: checking several tokens costs too much "
            "beside what is accepted. specchat then decodes without it."
        )
    console.print(f"Use it: specchat -m TARGET -d {output}")
