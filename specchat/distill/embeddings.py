"""A draft's first embeddings: the target's own, seen along their main directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specchat.engine.header import part_names
from specchat.errors import BadRequestError
from specchat.gguf_files import gguf_package

_ROWS = 8192  # of the matrix at a time
_SPREAD = 0.05  # standard deviation of an entry: logits of a normed state then are moderate

Matrix = npt.NDArray[np.float32]


def initial_embeddings(target: Path, vocabulary: int, width: int) -> Matrix:
    """Shape (vocabulary, width): the rows of the target's output matrix (its embedding where
    the two are one) in the coordinates of their `width` main components, which is their best
    approximation of that rank (Eckart & Young 1936), up to a common factor.

    Raises BadRequestError for a type that gguf cannot decode, or a missing matrix.
    """
    gguf = gguf_package("distill")
    tensor = _output_matrix(gguf, target)

    def rows(start: int) -> Matrix:
        data = tensor.data[start : min(start + _ROWS, vocabulary)]
        try:
            values = gguf.dequantize(data, tensor.tensor_type)
        except NotImplementedError:
            raise BadRequestError(
                f"The embedding of {target.name} has the type {tensor.tensor_type.name}, which "
                "cannot be decoded here; use the model in another quantisation."
            ) from None
        return np.asarray(values, np.float32)

    starts = range(0, vocabulary, _ROWS)
    columns = int(tensor.shape[0])
    total, gram = np.zeros(columns), np.zeros((columns, columns))
    for start in starts:
        part = rows(start)
        total += part.sum(axis=0)
        gram += part.T @ part
    mean = (total / vocabulary).astype(np.float32)
    covariance = gram / vocabulary - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    kept = min(width, len(values))
    directions = vectors[:, ::-1][:, :kept]
    made = np.zeros((vocabulary, width), np.float32)
    for start in starts:
        part = (rows(start) - mean) @ directions.astype(np.float32)
        made[start : start + len(part), :kept] = part
    # The state that meets them has its own directions: spread evenly, none is left unused.
    turned = made @ _rotation(width)
    return np.asarray(turned * (_SPREAD / max(float(turned.std()), 1e-12)), np.float32)


def _rotation(width: int) -> Matrix:
    """A random orthogonal matrix, always the same."""
    normal = np.random.default_rng(1).normal(size=(width, width))
    return np.asarray(np.linalg.qr(normal)[0], np.float32)


def _output_matrix(gguf: Any, target: Path) -> Any:
    found = {}
    for name in part_names(target.name):
        for tensor in gguf.GGUFReader(str(target.with_name(name))).tensors:
            if tensor.name in ("output.weight", "token_embd.weight"):
                found[tensor.name] = tensor
    if not found:
        raise BadRequestError(f"{target.name} has no token embedding.")
    return found.get("output.weight", found.get("token_embd.weight"))
