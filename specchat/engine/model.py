"""What the loop needs of a model: evaluate tokens at the end of a cache, and roll back.

Real models (`llama/`) and probability tables (`synthetic.py`) both satisfy these
protocols, so one loop, one set of acceptance rules and one controller serve both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]  # shape (outputs, n_vocab)


class Cache(Protocol):
    """The KV cache of one sequence.

    `tokens` are the ids evaluated so far, in order; its length is the cache's depth.
    """

    tokens: list[int]

    @property
    def model(self) -> Model: ...

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Raises RollbackError if the model cannot."""

    def mark(self) -> None:
        """What follows, over several calls, may be truncated to here. Only models that
        cannot drop tokens one by one need to know.
        """


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A request: append `tokens` to `cache` and return the logits of the last `outputs`.

    One without outputs may be carried out in part: ask again for what the cache lacks.
    """

    cache: Cache
    tokens: Sequence[int]
    outputs: int


class Model(Protocol):
    """A language model that evaluates many sequences in one call."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_ctx(self) -> int:
        """Context size of one sequence, in tokens."""

    @property
    def max_batch(self) -> int:
        """The most tokens one call takes, over all requests."""

    @property
    def prefill_chunk(self) -> int:
        """How many prompt tokens to evaluate per call."""

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Logits]:
        """Run all requests in one call.

        Returns, per request, float32 logits of shape (outputs, n_vocab): views that the
        next call to the same model overwrites. On error or abort every cache is left as it
        was, or empty where the model cannot go back. Raises DecodeError, Cancelled.
        """
