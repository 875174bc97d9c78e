"""Training, in steps that can stop at any moment and go on in another process.

A step depends only on the state and its number, so a run that was interrupted ends where an
uninterrupted one does (on the same machine and threads, bit for bit).
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from specchat.distill.data import Batch, Sample, draw_batch, split
from specchat.distill.embeddings import Matrix
from specchat.distill.loss import acceptance_and_kl, candidates, mixed
from specchat.distill.model import DraftModel
from specchat.distill.shape import Shape
from specchat.errors import BadRequestError
from specchat.gguf_files import written_whole

_CHUNK = 2**26  # logits computed at a time: 256 MiB
_HELD_OUT = 4096  # answer positions to measure on while training
_NO_GAIN = 0.001  # a smaller rise of the held-out acceptance is none


@dataclass(frozen=True, slots=True)
class Recipe:
    """`positions` answer tokens a step; `others` as in `loss.candidates`. Every
    `evaluate_every` steps the held-out acceptance is measured; after `patience` measurements
    without a gain training ends. The share of KL in the loss falls from 1 to `kl_end`.
    """

    positions: int = 512
    others: int = 2048
    rate: float = 4e-3
    warmup: int = 40
    decay: float = 0.05
    kl_end: float = 0.2
    evaluate_every: int = 50
    patience: int = 8
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step: `loss` of that step, held-out `acceptance` (Σ min(p, q) at temperature 1,
    over the whole vocabulary) where it was measured, and the best so far.
    """

    step: int
    steps: int
    loss: float
    acceptance: float | None
    best: float


class Trainer:
    """A model being trained. `seconds` is the time spent so far, over all runs."""

    def __init__(
        self,
        shape: Shape,
        samples: Sequence[Sample],
        embeddings: Callable[[], Matrix],
        recipe: Recipe,
        checkpoint: Path,
        threads: int = 0,
    ) -> None:
        """Goes on from `checkpoint` if there is one; else starts from `embeddings()`. Raises
        BadRequestError for one that is damaged, and when there are too few samples.
        """
        self.recipe, self.checkpoint = recipe, checkpoint
        self._train, held_out = split(samples)
        if not self._train:
            raise BadRequestError(
                f"{len(samples)} answers are too few to train on; give it more --hours."
            )
        self._held_out = draw_batch(held_out, _HELD_OUT, recipe.seed, 0)
        if threads:
            torch.set_num_threads(threads)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._vocabulary = shape.vocabulary
        self.step = self.steps = 0
        self.seconds = 0.0
        self.best, self._since_best = -1.0, 0
        saved = _load(checkpoint, self._device)
        first = embeddings() if saved is None else np.zeros((shape.vocabulary, shape.width), "f4")
        self.model = DraftModel(shape, first, recipe.seed).to(self._device)
        self._best_weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        self._optimizer = torch.optim.AdamW(
            _groups(self.model, recipe.decay), lr=recipe.rate, betas=(0.9, 0.98), fused=True
        )
        if saved is not None:
            self._restore(saved)

    def run(
        self,
        steps: int | None,
        deadline: float,
        stop: Callable[[], bool],
        report: Callable[[Progress], None] = lambda progress: None,
        save_every: float = 120.0,
    ) -> bool:
        """Train to `steps` in all (None: as many as fit before `deadline`, in seconds of
        training, as the first ones took). True when done: by count, by time, or because
        nothing is gained any more. False when `stop()` said so. Saves in either case.
        """
        self.steps = self.steps or steps or 0
        before, began, saved_at = self.seconds, perf_counter(), perf_counter()
        while not (done := self._finished(deadline)) and not stop():
            if not self.steps and self.step >= 5:  # the first ones show what one takes
                self.steps = max(20, int(self.step * deadline / max(self.seconds, 1e-9)))
            loss = self._advance()
            self.seconds = before + perf_counter() - began
            acceptance = None
            if self._should_measure(deadline):
                acceptance = self._measure()
            report(Progress(self.step, self.steps, loss, acceptance, self.best))
            if perf_counter() - saved_at > save_every:
                self.save()
                saved_at = perf_counter()
        self.save()
        return done

    def _finished(self, deadline: float) -> bool:
        """Never without one measurement: there would be no best weights."""
        return self.best >= 0 and (
            self._exhausted(deadline) or self._since_best >= self.recipe.patience
        )

    def _exhausted(self, deadline: float) -> bool:
        return self.seconds >= deadline or (0 < self.steps <= self.step)

    def _should_measure(self, deadline: float) -> bool:
        return self.step % self.recipe.evaluate_every == 0 or self._exhausted(deadline)

    def best_weights(self) -> dict[str, Any]:
        """Of the best held-out acceptance: float32 arrays by GGUF tensor name."""
        return {k: v.detach().float().cpu().numpy() for k, v in self._best_weights.items()}

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "best_weights": self._best_weights,
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "steps": self.steps,
            "seconds": self.seconds,
            "best": self.best,
            "since_best": self._since_best,
        }
        written_whole(self.checkpoint, lambda path: torch.save(state, path))

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["model"])
            self._best_weights = state["best_weights"]
            self._optimizer.load_state_dict(state["optimizer"])
            self.step, self.steps = int(state["step"]), int(state["steps"])
            self.seconds, self.best = float(state["seconds"]), float(state["best"])
            self._since_best = int(state["since_best"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _damaged(self.checkpoint, error) from None

    def _advance(self) -> float:
        recipe = self.recipe
        share = min(1.0, self.step / self.steps) if self.steps else 0.0
        rate = recipe.rate * min(1.0, (self.step + 1) / recipe.warmup)
        rate *= 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        batch = draw_batch(self._train, recipe.positions, recipe.seed, self.step)
        kl_share = 1 - (1 - recipe.kl_end) * share
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._backward(batch, kl_share)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self.step += 1
        return loss

    def _backward(self, batch: Batch, kl_share: float) -> float:
        """Gradients of the loss over `batch`. The logits, by far the largest thing there is,
        are made and forgotten in pieces.
        """
        rng = np.random.default_rng((self.recipe.seed, self.step, 1))
        chosen = candidates(batch.top_ids, self._vocabulary, self.recipe.others, rng)
        states = self._states(batch)
        ids = torch.from_numpy(chosen.ids).to(self._device)
        rows = self.model.token_embd(ids)
        cut_states, cut_rows = states.detach().requires_grad_(), rows.detach().requires_grad_()
        log_weights = torch.from_numpy(chosen.log_weights).to(self._device)
        total, n = 0.0, len(states)
        piece = max(1, _CHUNK // len(ids))
        for i in range(0, n, piece):
            places = torch.from_numpy(chosen.places[i : i + piece]).to(self._device)
            logprobs = torch.from_numpy(batch.top_logprobs[i : i + piece]).to(self._device)
            logits = cut_states[i : i + piece] @ cut_rows.T
            acceptance, kl = acceptance_and_kl(logits, log_weights, places, logprobs)
            loss = mixed(acceptance, kl, kl_share) * (len(places) / n)
            loss.backward()
            total += float(loss.detach())
        torch.autograd.backward([states, rows], [cut_states.grad, cut_rows.grad])
        return total

    def _states(self, batch: Batch) -> torch.Tensor:
        """States at the answer positions: shape (n, width)."""
        states = self.model(torch.from_numpy(batch.tokens).to(self._device))
        return states[
            torch.from_numpy(batch.rows).to(self._device),
            torch.from_numpy(batch.columns).to(self._device),
        ]

    def _measure(self) -> float:
        """Held-out acceptance over the whole vocabulary; keeps the weights if they are best."""
        with torch.no_grad():
            acceptance = mean_acceptance(self.model, self._states(self._held_out), self._held_out)
        if acceptance > self.best + _NO_GAIN:
            self._since_best = 0
        else:
            self._since_best += 1
        if acceptance > self.best:
            self.best = acceptance
            self._best_weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        return acceptance


def mean_acceptance(model: DraftModel, states: torch.Tensor, batch: Batch) -> float:
    """Mean of Σ min(p, q) over the positions of `batch`, whose `states` are (n, width)."""
    total = 0.0
    piece = max(1, _CHUNK // model.token_embd.weight.shape[0])
    nothing = torch.zeros(1, device=states.device)
    for i in range(0, len(states), piece):
        ids = torch.from_numpy(batch.top_ids[i : i + piece]).to(states.device)
        logprobs = torch.from_numpy(batch.top_logprobs[i : i + piece]).to(states.device)
        logits = model.logits(states[i : i + piece])
        acceptance, _ = acceptance_and_kl(logits, nothing, ids, logprobs)
        total += float(acceptance.sum())
    return total / len(states)


def _groups(model: DraftModel, decay: float) -> list[dict[str, Any]]:
    """Matrices are decayed; norms and the embedding, of which a step sees little, are not."""
    named = dict(model.named_parameters())
    matrices = [w for k, w in named.items() if w.dim() == 2 and k != "token_embd.weight"]
    others = [w for k, w in named.items() if w.dim() != 2 or k == "token_embd.weight"]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]


def _load(path: Path, device: torch.device) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from None
    return state


def _damaged(path: Path, error: Exception) -> BadRequestError:
    reason = str(error).split("\n")[0][:120]
    return BadRequestError(f"The checkpoint {path} is damaged ({reason}); remove it.")
