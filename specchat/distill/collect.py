"""Letting the target write, many answers at a time, and keeping what it nearly said.

The engine's service shares model calls between the answers, as for the endpoint's clients.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from specchat.distill.data import Sample, save_shard
from specchat.distill.sources import Sources
from specchat.engine.engine import Engine, Settings
from specchat.engine.events import Event, Token
from specchat.engine.llama import ModelOptions
from specchat.engine.sampling import SamplingParams
from specchat.engine.service import Service, Ticket
from specchat.errors import Cancelled

TOP = 64  # likeliest tokens kept per position: more than any usual top-k
ANSWER = 192  # longest answer, in tokens
PROMPT = 320  # longest prompt
_SHARD = 48  # samples a shard
_SHORTEST = 4  # an answer that was cut off earlier teaches nothing
# (temperature, top-k, top-p, min-p): users' usual ones, greedy, and the model as it is.
_CHAINS = ((0.8, 40, 0.95, 0.05), (0.8, 40, 0.95, 0.05), (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0))


@dataclass(slots=True)
class _Answer:
    """One answer under way; its lists grow on the engine's thread."""

    index: int
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)

    def listen(self, event: Event) -> None:
        if isinstance(event, Token):
            self.tokens.append(event.id)
            self.ids.append([a.id for a in event.alternatives])
            self.logprobs.append([a.logprob for a in event.alternatives])

    def sample(self) -> Sample | None:
        if len(self.tokens) < _SHORTEST:
            return None
        return Sample(
            index=self.index,
            tokens=np.array([*self.prompt, *self.tokens], np.int32),
            prompt=len(self.prompt),
            top_ids=np.array(self.ids, np.int32),
            top_logprobs=np.array(self.logprobs, np.float16),
        )


def load_target(path: Path, parallel: int, threads: int = 0) -> Engine:
    """The target, ready for `parallel` answers at a time. Raises what `Engine.load` raises."""
    options = ModelOptions(
        n_ctx=PROMPT + ANSWER, sequences=parallel, max_outputs=1, threads=threads
    )
    return Engine.load(path, options=options)


def collect(
    engine: Engine,
    sources: Sources,
    folder: Path,
    first: int,
    enough: Callable[[int, float], bool],
) -> int:
    """Sample answers to prompts `first`, `first` + 1, … into shards in `folder`, until
    `enough(answer tokens, seconds)` says so; answers under way are then kept as far as they
    came. Closes the engine. Returns the number of answer tokens.
    """
    parallel = engine.idle_slots
    service = Service(engine, waiting=parallel + 2)  # two wait, so that no slot idles
    finished: queue.SimpleQueue[tuple[_Answer, BaseException | None]] = queue.SimpleQueue()
    running: dict[int, tuple[Ticket, _Answer]] = {}
    start = saved = perf_counter()
    index, kept = first, 0
    ready: list[Sample] = []
    stopping = False

    def ask(index: int) -> None:
        answer = _Answer(index)

        def prompt(engine: Engine) -> list[int]:
            answer.prompt = sources.prompt(index, engine, PROMPT)
            return answer.prompt

        ticket = service.submit(
            prompt,
            _settings(index),
            on_event=answer.listen,
            on_done=lambda error: finished.put((answer, error)),
        )
        running[index] = ticket, answer

    try:
        while running or not stopping:
            tokens = kept + sum(len(answer.tokens) for _, answer in running.values())
            if not stopping and enough(tokens, perf_counter() - start):
                stopping = True
                for ticket, _ in running.values():
                    ticket.cancel.set()
            while not stopping and len(running) < parallel + 2:
                ask(index)
                index += 1
            try:
                answer, error = finished.get(timeout=0.2)
            except queue.Empty:
                continue
            del running[answer.index]
            if error is not None and not isinstance(error, Cancelled):
                raise error
            if sample := answer.sample():
                ready.append(sample)
                kept += len(answer.tokens)
            if len(ready) >= _SHARD:
                save_shard(folder, ready, perf_counter() - saved)
                ready, saved = [], perf_counter()
        if ready:
            save_shard(folder, ready, perf_counter() - saved)
    finally:
        service.close()
    return kept


def _settings(index: int) -> Settings:
    temperature, top_k, top_p, min_p = _CHAINS[index % len(_CHAINS)]
    return Settings(
        sampling=SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=index
        ),
        draft_length=0,
        drafter="none",
        max_tokens=ANSWER,
        logprobs=TOP,
    )
