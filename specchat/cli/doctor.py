"""`specchat doctor`: does this pair fit, and does drafting pay on this machine?

First from the files alone, then with the models loaded.
"""

from __future__ import annotations

import argparse
from datetime import datetime

from rich.console import Console
from rich.table import Table

from specchat.cli import options
from specchat.cli.tables import console as make_console
from specchat.cli.tables import size, table
from specchat.engine.header import Header, read_header
from specchat.engine.pairing import check_pair
from specchat.errors import SpecchatError

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor", help="check whether a pair of models fits, and what it costs", description=__doc__
    )
    options.add_model_flags(parser)
    parser.add_argument("--no-load", action="store_true", help="look at the files only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 where the pair fits, 2 where it does not."""
    from specchat.cli.fit import Fit, report
    from specchat.engine.llama import may_use_gpu
    from specchat.engine.memory import free_memory

    console, loading = make_console(), options.model_options(args)
    target = read_header(options.target_path(args))
    draft = read_header(args.draft) if args.draft else None
    console.print(_files(target, draft))
    for header in (target, draft):
        if header is not None:
            kind = header.metadata["tokenizer.ggml.model"]
            console.print(f"{header.path.name}: {header.vocabulary_size:,} tokens of type {kind}")
    fits = True
    if draft is not None:
        fit = check_pair(target, draft)
        fits = fit.fits
        console.print(f"Vocabulary: {fit.note or 'MISMATCH: ' + fit.reason}")
    fits = _template(console, target) and fits
    in_memory = report(
        console, Fit(target, draft, loading, free_memory()), may_use_gpu(loading.n_gpu_layers)
    )
    for header in (target, draft):
        if header is not None and header.recurrent:
            console.print(
                f"{header.path.name} has recurrent layers: rejected tokens leave it only by "
                "snapshots or checkpoints."
            )
    if not fits or not in_memory or args.no_load:
        return 0 if fits and in_memory else 2
    _loaded(console, args)
    return 0


def _files(target: Header, draft: Header | None) -> Table:
    rows = table("", "file", "architecture", "type", "parameters>", "size>", "trained context>")
    for role, header in (("target", target), ("draft", draft)):
        if header is not None:
            rows.add_row(
                role,
                header.path.name,
                header.architecture,
                header.quantisation,
                f"{header.parameters / 1e6:,.0f} M",
                size(header.weight_bytes),
                f"{header.context_length:,}",
            )
    return rows


def _template(console: Console, target: Header) -> bool:
    """Whether the chat template compiles; what stands in where there is none."""
    from specchat.engine.template_sandbox import Sandbox

    if target.chat_template is None:
        console.print("Chat template: none in the file; the default (ChatML) is used.")
        return True
    try:
        Sandbox(target.chat_template, now=datetime.now, seconds=2.0, max_output=1 << 20)
    except SpecchatError as error:
        console.print(f"Chat template: BROKEN: {error}")
        return False
    console.print(f"Chat template: {len(target.chat_template):,} characters, compiles")
    return True


def _loaded(console: Console, args: argparse.Namespace) -> None:
    """Load both and report what calls really cost."""
    from specchat.engine.costs import break_even
    from specchat.engine.messages import Message

    with options.load_engine(args) as engine:
        question = len(engine.template.tokens([Message("user", "Hello")]))
        console.print("")
        console.print(f"Chat template: renders, a one-word question takes {question} tokens")
        console.print(f"Rollback: target {engine.target.rollback}", end="")
        console.print(f", draft {engine.draft.rollback}" if engine.draft else "")
        if engine.refusal:
            console.print(f"No speculation: {engine.refusal}")
            return
        costs = engine.calibration.costs.at(0, max(_LENGTHS))
        table = Table(title="Measured at an empty context", title_justify="left", box=None)
        for title in ("draft\nlength", "target call\nms", "relative", "break-even\nacceptance"):
            table.add_column(title, justify="right")
        table.add_row("0", f"{1e3 * costs.verify[0]:.1f}", "1.00", "")
        needed = {
            k: break_even(k, costs.verify, costs.draft_step, costs.overhead) for k in _LENGTHS
        }
        for k, acceptance in needed.items():
            table.add_row(
                str(k),
                f"{1e3 * costs.verify[k]:.1f}",
                f"{costs.verify[k] / costs.verify[0]:.2f}",
                "none" if acceptance is None else f"{acceptance:.2f}",
            )
        console.print(table)
        if engine.draft is not None:
            console.print(f"One draft step: {1e3 * costs.draft_step:.1f} ms")
        console.print(_advice([a for a in needed.values() if a is not None]))


def _advice(reachable: list[float]) -> str:
    if not reachable:
        return "Drafting never pays here: the target is too cheap beside the draft."
    least = min(reachable)
    if least < 0.6:
        return f"Drafting pays from an acceptance of {least:.2f}: most chats will be faster."
    return f"Drafting pays from an acceptance of {least:.2f}: only predictable text will be faster."
