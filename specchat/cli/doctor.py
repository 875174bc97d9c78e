"""`specchat doctor`: does this pair fit, and does drafting pay on this machine?

First from the files alone, then with the models loaded.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table

from specchat.cli import options
from specchat.engine.header import Header, read_header
from specchat.engine.pairing import check_pair
from specchat.errors import SpecchatError

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: weights and KV cache of all models, and what the machine has free."""

    weights: int
    kv: int
    free: int

    @property
    def fits(self) -> bool:
        return self.weights + self.kv <= self.free


class _Console(Console):
    """Ends like the other commands when its reader leaves; rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor", help="check whether a pair of models fits, and what it costs", description=__doc__
    )
    options.add_model_flags(parser)
    parser.add_argument("--no-load", action="store_true", help="look at the files only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 where the pair fits, 2 where it does not."""
    console = _Console(highlight=False)
    target = read_header(options.target_path(args))
    draft = read_header(args.draft) if args.draft else None
    console.print(_files(target, draft))
    for header in (target, draft):
        if header is not None:
            kind = header.metadata["tokenizer.ggml.model"]
            console.print(
                f"{header.path.name}: {header.vocabulary_size:,} tokens of type {kind}",
                markup=False,
            )
    fits = True
    if draft is not None:
        fit = check_pair(target, draft)
        fits = fit.fits
        console.print(f"Vocabulary: {fit.note or 'MISMATCH: ' + fit.reason}", markup=False)
    fits = _template(console, target) and fits
    memory = _memory(target, draft, args)
    console.print(
        f"Memory: weights {_size(memory.weights)} + KV cache {_size(memory.kv)} "
        f"of {_size(memory.free)} free: {'fits' if memory.fits else 'DOES NOT FIT'}"
    )
    if not memory.fits:
        console.print("  Try a smaller --ctx, --type-k q8_0 --type-v q8_0, or a smaller file.")
    for header in (target, draft):
        if header is not None and header.recurrent:
            console.print(
                f"{header.path.name} has recurrent layers: rejected tokens leave it only by "
                "snapshots or checkpoints.",
                markup=False,
            )
    if not fits or not memory.fits or args.no_load:
        return 0 if fits and memory.fits else 2
    _loaded(console, args)
    return 0


def _files(target: Header, draft: Header | None) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("", "file", "architecture", "type", "parameters", "size", "trained context"):
        table.add_column(title, overflow="fold")
    for role, header in (("target", target), ("draft", draft)):
        if header is not None:
            table.add_row(
                role,
                header.path.name,
                header.architecture,
                header.quantisation,
                f"{header.parameters / 1e6:,.0f} M",
                _size(header.weight_bytes),
                f"{header.context_length:,}",
            )
    return table


def _template(console: Console, target: Header) -> bool:
    """Whether the chat template compiles; what stands in where there is none."""
    from specchat.engine.template_sandbox import Sandbox

    if target.chat_template is None:
        console.print("Chat template: none in the file; the default (ChatML) is used.")
        return True
    try:
        Sandbox(target.chat_template, now=datetime.now, seconds=2.0, max_output=1 << 20)
    except SpecchatError as error:
        console.print(f"Chat template: BROKEN: {error}", markup=False)
        return False
    console.print(f"Chat template: {len(target.chat_template):,} characters, compiles")
    return True


def _memory(target: Header, draft: Header | None, args: argparse.Namespace) -> Memory:
    import psutil

    n_ctx = args.ctx or min(target.context_length or 8192, 8192)
    headers = [h for h in (target, draft) if h is not None]
    return Memory(
        weights=sum(h.weight_bytes for h in headers),
        kv=sum(h.kv_bytes(n_ctx, args.type_k, args.type_v) for h in headers),
        free=psutil.virtual_memory().available,
    )


def _loaded(console: Console, args: argparse.Namespace) -> None:
    """Load both and report what calls really cost."""
    from specchat.engine.costs import break_even
    from specchat.engine.messages import Message

    with options.load_engine(args) as engine:
        question = len(engine.template.tokens([Message("user", "Hello")]))
        console.print(f"\nChat template: renders, a one-word question takes {question} tokens")
        console.print(f"Rollback: target {engine.target.rollback}", end="")
        console.print(f", draft {engine.draft.rollback}" if engine.draft else "")
        if engine.refusal:
            console.print(f"No speculation: {engine.refusal}", markup=False)
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


def _size(n: int) -> str:
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"
