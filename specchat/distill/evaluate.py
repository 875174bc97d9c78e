"""What a draft is worth: the written file, in the engine, against what it never saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specchat.bench.runner import Ratio, answer, interval
from specchat.distill.collect import ANSWER, PROMPT
from specchat.distill.data import Sample, split
from specchat.distill.prompts import question
from specchat.engine.costs import rates
from specchat.engine.engine import MAX_DRAFT_LENGTH, Engine, Settings
from specchat.engine.llama import LlamaModel, ModelOptions
from specchat.engine.model import Evaluate
from specchat.engine.rules import make_rule
from specchat.engine.sampling import Chain, SamplingParams
from specchat.errors import Cancelled

Report = Callable[[float], None]  # gets the share that is done, 0..1

TEMPERATURES = (0.0, 0.8)
_POSITIONS = 3000  # held-out answer tokens to look at
_DEPTH = 200  # tokens in the cache for which costs are quoted
_QUESTIONS = 10**6  # prompt numbers of the speed measurement: none is ever trained on


@dataclass(frozen=True, slots=True)
class Worth:
    """At one temperature (else the usual sampler chain, rule exact): `acceptance` is the mean
    of Σ min(p, q) over held-out positions; `draft_length` the best fixed one at that
    acceptance and this machine's measured costs, and `predicted` its speedup; `measured` is
    the controller against plain decoding, None where not measured.
    """

    temperature: float
    acceptance: float
    positions: int
    draft_length: int
    predicted: float
    measured: Ratio | None


def held_out_acceptance(
    draft: Path,
    samples: Sequence[Sample],
    temperature: float,
    threads: int = 0,
    report: Report = lambda share: None,
) -> tuple[float, int]:
    """Mean Σ min(p, q) after the usual sampler chain, over the held-out answers in `samples`,
    and the number of positions. p comes from the target's kept likeliest tokens (more than
    top-k keeps), q from the draft's file.
    """
    params = SamplingParams(temperature=temperature)
    rule = make_rule("exact")
    total, count = 0.0, 0
    options = ModelOptions(
        n_ctx=PROMPT + ANSWER,
        prefill_chunk=PROMPT + ANSWER,
        max_outputs=ANSWER,
        threads=threads,
    )
    with LlamaModel.load(draft, options) as model:
        chain = Chain(params, model.n_vocab)
        cache = model.new_cache()
        held_out = split(samples)[1]
        for number, sample in enumerate(held_out):
            report(max(number / len(held_out), count / _POSITIONS))
            if count >= _POSITIONS:
                break
            cache.truncate(0)
            answer_length = len(sample.tokens) - sample.prompt
            rows = model.evaluate([Evaluate(cache, sample.tokens[:-1].tolist(), answer_length)])[0]
            for row, ids, logprobs in zip(rows, sample.top_ids, sample.top_logprobs, strict=True):
                known = np.full(model.n_vocab, -1e9, np.float32)
                known[ids] = logprobs
                total += rule.expected(chain.distribution(known, ()), chain.distribution(row, ()))
                count += 1
    return (total / count if count else 0.0), count


def predicted_speedup(engine: Engine, acceptance: float) -> tuple[int, float]:
    """(best fixed draft length, its speedup over plain decoding) if every draft token were
    accepted with chance `acceptance`, at the costs measured on this machine.
    """
    costs = engine.calibration.costs.at(_DEPTH, MAX_DRAFT_LENGTH)
    chances = np.full(MAX_DRAFT_LENGTH, acceptance)
    speeds = rates(chances, costs.verify, costs.draft_step, costs.overhead)
    best = int(speeds.argmax())
    return best, float(speeds[best] / speeds[0])


def measured_speedup(
    engine: Engine,
    temperature: float,
    questions: int,
    tokens: int,
    stop: Callable[[], bool],
    report: Report = lambda share: None,
) -> Ratio:
    """The controller with this draft against plain decoding, question by question, either
    first in turn: median of paired ratios with a 95 % interval.
    """
    pairs = []
    for i in range(questions):
        report(i / questions)
        text = question(np.random.default_rng((1, _QUESTIONS + i)))
        speeds: dict[str, float] = {}
        for drafter in ("draft", "none") if i % 2 else ("none", "draft"):
            if stop():
                raise Cancelled("Stopped while measuring; the draft itself is finished.")
            settings = Settings(
                sampling=SamplingParams(temperature=temperature, seed=i),
                draft_length=None if drafter == "draft" else 0,
                drafter=drafter,
                max_tokens=tokens,
            )
            speeds[drafter] = answer(engine, text, settings).tokens_per_second
        if min(speeds.values()) > 0:
            pairs.append(speeds["draft"] / speeds["none"])
    return interval(pairs)


def evaluate(
    target: Path,
    draft: Path,
    samples: Sequence[Sample],
    *,
    questions: int = 6,
    tokens: int = 64,
    threads: int = 0,
    stop: Callable[[], bool] = lambda: False,
    report: Report = lambda share: None,
) -> list[Worth]:
    """All of the above, by temperature. No speed is measured with `questions` 0. `report` gets
    the share that is done. Raises Cancelled when `stop()` says so.
    """

    def part(number: int) -> Report:
        parts = 2 * len(TEMPERATURES)
        return lambda share: report((number + min(1.0, share)) / parts)

    shares = [
        held_out_acceptance(draft, samples, temperature, threads, part(i))
        for i, temperature in enumerate(TEMPERATURES)
    ]
    options = ModelOptions(n_ctx=1024, threads=threads)
    found = []
    with Engine.load(target, draft, options=options) as engine:
        for i, temperature in enumerate(TEMPERATURES):
            acceptance, positions = shares[i]
            length, predicted = predicted_speedup(engine, acceptance)
            measured = None
            if questions:
                watch = part(len(TEMPERATURES) + i)
                measured = measured_speedup(engine, temperature, questions, tokens, stop, watch)
            found.append(Worth(temperature, acceptance, positions, length, predicted, measured))
    return found
