"""`specchat simulate`: speculative decoding in ten seconds, without a model file.

Runs the real draft/verify loop on synthetic models over a grid of draft quality and draft
length, and shows how many target calls it took beside what the formula predicts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from specchat.engine.events import Finish, Usage
from specchat.engine.rules import RULES, Rule, make_rule
from specchat.engine.synthetic import Table, align, predict, random_table, simulate
from specchat.errors import BadRequestError

ALIGNMENTS = (0.60, 0.75, 0.90)
DRAFT_LENGTHS = (2, 4, 6)
MOST_TOKENS = 100_000  # a minute or two
TITLES = (
    "alignment",
    "draft\nlength",
    "target\ncalls",
    "acceptance\nrate",
    "tok/call",
    "predicted\ntok/call",
    "speedup",
    "predicted\nspeedup",
)

# Lines of at most 79 characters, printed as they are.
INTRO = """\
A draft guesses the next letters and one target call checks them all: every
accepted letter saves a call. Alignment: chance to guess the target's favourite."""
COUNTS = """\
Speedup counts target calls, as if drafting and checking cost nothing: for real
costs see `specchat bench`. Predicted: the formula's long-run average."""
LOSSY = """\
Rule typical is lossy: it keeps any letter that is good enough, so answers do not
follow the target's distribution. For the lossless rule of chats: --rule exact."""
OVERSURE = """\
A lossless rule must refuse a draft that is surer than the target, so alignment
helps less here: for exact the best draft has the target's own distribution."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one setting gives; no acceptance rate where nothing was drafted."""

    acceptance_rate: float | None
    tokens_per_call: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    alignment: float
    draft_length: int
    target_calls: int
    measured: Figures
    predicted: Figures


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="show how speculative decoding saves target calls; needs no model",
        description=INTRO,
    )
    parser.add_argument(
        "--rule",
        choices=RULES,
        default="typical",
        help="acceptance rule: typical (lossy; default), exact or match (lossless)",
    )
    parser.add_argument(
        "--tau",
        type=float,
        help="typical keeps a letter of at least TAU times the best one's probability "
        "(default 0.5)",
    )
    parser.add_argument(
        "--tokens", type=int, default=500, help="letters to generate per line (default 500)"
    )
    parser.add_argument("--seed", type=int, default=1, help="whole number (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table or the JSON. Raises BadRequestError for a value out of range."""
    if not 1 <= args.tokens <= MOST_TOKENS:
        raise BadRequestError(
            f"--tokens must be between 1 and {MOST_TOKENS}, not {args.tokens}.", "tokens"
        )
    if args.seed < 0:
        raise BadRequestError(f"--seed must not be negative: {args.seed}.", "seed")
    if args.tau is not None and args.rule != "typical":
        raise BadRequestError(
            f"--tau is for --rule typical; rule {args.rule} has no threshold.", "tau"
        )
    tau = 0.5 if args.tau is None else args.tau
    rule = make_rule(args.rule, tau)
    target = random_table(args.seed)
    baseline = _count(target, target, rule, 0, args.tokens, args.seed).target_calls
    lines = [
        _line(target, alignment, rule, length, args.tokens, args.seed, baseline)
        for alignment in ALIGNMENTS
        for length in DRAFT_LENGTHS
    ]
    if args.json:
        document = {
            "rule": rule.name,
            "tau": tau if rule.name == "typical" else None,
            "lossless": rule.lossless,
            "tokens": args.tokens,
            "seed": args.seed,
            "baseline_target_calls": baseline,
            "lines": [asdict(line) for line in lines],
        }
        print(json.dumps(document, indent=2))
    else:
        _show(rule, tau, args.tokens, baseline, lines)
    return 0


def _count(target: Table, draft: Table, rule: Rule, length: int, tokens: int, seed: int) -> Usage:
    """Run the loop and return its counts."""
    *_, finish = simulate(target, draft, rule, length, tokens, seed)
    assert isinstance(finish, Finish)
    return finish.usage


def _line(
    target: Table, alignment: float, rule: Rule, length: int, tokens: int, seed: int, baseline: int
) -> Line:
    draft = align(target, alignment)
    usage = _count(target, draft, rule, length, tokens, seed)
    prediction = predict(rule, target, draft, length)
    return Line(
        alignment,
        length,
        usage.target_calls,
        measured=Figures(
            usage.accepted_tokens / usage.drafted_tokens if usage.drafted_tokens else None,
            usage.completion_tokens / usage.target_calls,
            baseline / usage.target_calls,
        ),
        # Plain decoding is one call a token, so here tok/call and speedup are one number.
        predicted=Figures(
            prediction.acceptance, prediction.tokens_per_call, prediction.tokens_per_call
        ),
    )


def _show(rule: Rule, tau: float, tokens: int, baseline: int, lines: list[Line]) -> None:
    print(INTRO)
    name = f"typical, tau {tau:g} (lossy)" if rule.name == "typical" else f"{rule.name} (lossless)"
    print(f"\nRule: {name}")
    print(
        f"Plain decoding: {baseline} target calls for {tokens} tokens, "
        f"{tokens / baseline:.2f} tok/call"
    )
    grid = Grid(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for title in TITLES:
        grid.add_column(title, justify="right")
    for line in lines:
        measured, predicted = line.measured, line.predicted
        rate = measured.acceptance_rate
        grid.add_row(
            f"{line.alignment:.2f}",
            str(line.draft_length),
            str(line.target_calls),
            "-" if rate is None else f"{rate:.0%}",
            f"{measured.tokens_per_call:.2f}",
            f"{predicted.tokens_per_call:.2f}",
            f"{measured.speedup:.2f}x",
            f"{predicted.speedup:.2f}x",
            end_section=line.draft_length == DRAFT_LENGTHS[-1],
        )
    Console(highlight=False).print(grid)
    print(COUNTS)
    print(OVERSURE if rule.lossless else LOSSY)
