"""How large a draft to train, from what a step of it may cost."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.engine.header import Header
from specchat.errors import BadRequestError

HEAD = 64  # width of an attention head, for which llama.cpp has fast kernels everywhere
ROPE_BASE = 10000.0
EPS = 1e-5  # of RMS normalisation
CONTEXT = 512  # tokens of a training sequence at most, and the context length in the file
# Bytes per weight. Blocks of 32 weights: a half-precision scale, and 8 or 4 bits each.
TYPES = {"F32": 4.0, "BF16": 2.0, "Q8_0": 34 / 32, "Q4_0": 18 / 32}
_CHOICES = ((128, 2), (128, 3), (192, 2), (192, 3), (256, 3), (256, 4))  # (width, layers)
_SHARE = 0.08  # of the target's bytes per step, that a step of the draft may read


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama model with tied embeddings, as many key heads as query heads."""

    vocabulary: int
    width: int
    layers: int

    def __post_init__(self) -> None:
        """Raises BadRequestError naming the flag."""
        if self.width % HEAD or not HEAD <= self.width <= 2048:
            raise BadRequestError(
                f"--width must be a multiple of {HEAD} up to 2048, not {self.width}.", "width"
            )
        if not 1 <= self.layers <= 32:
            raise BadRequestError(f"--layers must be 1 to 32, not {self.layers}.", "layers")

    @property
    def heads(self) -> int:
        return self.width // HEAD

    @property
    def feed(self) -> int:
        """Width of the feed-forward part: 8/3 of the width, rounded up to whole blocks."""
        return -(-8 * self.width // (3 * 64)) * 64

    @property
    def parameters(self) -> int:
        block = 4 * self.width**2 + 3 * self.width * self.feed + 2 * self.width
        return self.vocabulary * self.width + self.layers * block + self.width

    def step_bytes(self, kind: str) -> int:
        """Bytes that one step reads, in weights of type `kind`: all, for the embedding is
        the output matrix too.
        """
        return int(self.parameters * TYPES[kind])


def choose_shape(
    target: Header, kind: str, width: int | None = None, layers: int | None = None
) -> Shape:
    """The largest of some usual shapes whose step reads at most 8 % of what a step of the
    target reads (decoding is bound by memory), the smallest where none does. What the caller
    gives is taken.
    """
    vocabulary = target.vocabulary_size
    limit = _SHARE * target.step_bytes
    best = _CHOICES[0]
    for choice in _CHOICES:
        if Shape(vocabulary, *choice).step_bytes(kind) <= limit:
            best = choice
    return Shape(vocabulary, width or best[0], layers or best[1])
