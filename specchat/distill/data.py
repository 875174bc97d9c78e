"""Sampled answers with what the target nearly said: on disk, and as training data.

A shard is an .npz of a few dozen samples, written whole or not at all.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specchat.errors import BadRequestError
from specchat.gguf_files import written_whole

# Prompts of which one is kept for measuring, never trained on. Prime, so that no kind of
# prompt and no way of sampling, which go by the number too, is left out.
HELD_OUT_EVERY = 17

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt and its answer, by the target.

    `tokens` are both, shape (n,); the first `prompt` of them are the prompt. For each of the
    a = n − prompt answer tokens, `top_ids` and `top_logprobs`, shape (a, k), are the k
    likeliest tokens there with their natural-log probabilities (raw model, temperature 1),
    best first. `index` is the prompt's number.
    """

    index: int
    tokens: Tokens
    prompt: int
    top_ids: Tokens
    top_logprobs: npt.NDArray[np.float16]


def split(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """(to train on, to measure with): by prompt number, or the last one where that gives
    none to measure with.
    """
    held_out = [s for s in samples if s.index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    held_out = held_out or list(samples[-1:])
    chosen = {s.index for s in held_out}
    return [s for s in samples if s.index not in chosen], held_out


def save_shard(folder: Path, samples: Sequence[Sample], seconds: float) -> Path:
    """Write a new shard; `seconds` is how long the target took for it."""
    number = 1 + max((int(p.stem) for p in folder.glob("*.npz")), default=0)
    arrays = {
        "index": np.array([s.index for s in samples], np.int64),
        "length": np.array([len(s.tokens) for s in samples], np.int64),
        "prompt": np.array([s.prompt for s in samples], np.int64),
        "tokens": np.concatenate([s.tokens for s in samples]),
        "top_ids": np.concatenate([s.top_ids for s in samples]),
        "top_logprobs": np.concatenate([s.top_logprobs for s in samples]),
        "seconds": np.array(seconds),
    }

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    return written_whole(folder / f"{number:05d}.npz", write)


def load_shards(folder: Path) -> tuple[list[Sample], float]:
    """All samples in order, and the seconds they took. Raises BadRequestError for a damaged
    shard, naming it.
    """
    samples: list[Sample] = []
    seconds = 0.0
    for path in sorted(folder.glob("*.npz")):
        try:
            with np.load(path, allow_pickle=False) as shard:
                samples += _samples({name: shard[name] for name in shard.files})
                seconds += float(shard["seconds"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise BadRequestError(f"{path} is damaged ({error}); remove it.") from None
    return samples, seconds


def _samples(shard: dict[str, npt.NDArray[np.generic]]) -> Iterable[Sample]:
    ends = np.cumsum(shard["length"].astype(np.int64))
    answers = np.cumsum((shard["length"] - shard["prompt"]).astype(np.int64))  # type: ignore[operator]
    if ends[-1] != len(shard["tokens"]) or answers[-1] != len(shard["top_ids"]):
        raise ValueError("lengths do not add up")
    start = answer = 0
    for i, (end, answer_end) in enumerate(zip(ends, answers, strict=True)):
        yield Sample(
            index=int(shard["index"][i]),
            tokens=shard["tokens"][start:end].astype(np.int32),
            prompt=int(shard["prompt"][i]),
            top_ids=shard["top_ids"][answer:answer_end].astype(np.int32),
            top_logprobs=shard["top_logprobs"][answer:answer_end].astype(np.float16),
        )
        start, answer = end, answer_end


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples side by side, padded at the end with token 0: `tokens` has shape (b, t).

    For n answer positions over all samples: `rows` and `columns`, shape (n,), say where in
    `tokens` the *preceding* token stands, `top_ids` and `top_logprobs`, shape (n, k), what the
    target thought comes next.
    """

    tokens: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    top_ids: npt.NDArray[np.int64]
    top_logprobs: npt.NDArray[np.float32]


def make_batch(samples: Sequence[Sample]) -> Batch:
    tokens = np.zeros((len(samples), max(len(s.tokens) for s in samples)), np.int64)
    rows, columns = [], []
    for i, s in enumerate(samples):
        tokens[i, : len(s.tokens)] = s.tokens
        rows.append(np.full(len(s.tokens) - s.prompt, i, np.int64))
        columns.append(np.arange(s.prompt - 1, len(s.tokens) - 1, dtype=np.int64))
    return Batch(
        tokens=tokens,
        rows=np.concatenate(rows),
        columns=np.concatenate(columns),
        top_ids=np.concatenate([s.top_ids for s in samples]).astype(np.int64),
        top_logprobs=np.concatenate([s.top_logprobs for s in samples]).astype(np.float32),
    )


def draw_batch(samples: Sequence[Sample], positions: int, seed: int, step: int) -> Batch:
    """Samples drawn at random until they have `positions` answer tokens (or all are in). The
    same for the same `seed` and `step`, whatever ran before.
    """
    order = np.random.default_rng((seed, step)).permutation(len(samples))
    chosen: list[Sample] = []
    total = 0
    for i in order:
        chosen.append(samples[i])
        total += len(samples[i].top_ids)
        if total >= positions:
            break
    return make_batch(chosen)
