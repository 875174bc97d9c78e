"""Prefix reuse: evaluate only what a cache does not hold yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from specchat.engine.model import Cache
from specchat.errors import RollbackError


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning of two token sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def reuse(cache: Cache, prompt: Sequence[int]) -> int:
    """Keep what `cache` shares with `prompt`, but for the prompt's last token, whose logits
    are needed. Returns the tokens kept: 0 when the model cannot go back.
    """
    keep = common_prefix(cache.tokens, prompt[:-1])
    try:
        cache.truncate(keep)
    except RollbackError:
        cache.truncate(0)
    return len(cache.tokens)


def missing_chunks(cache: Cache, context: Sequence[int]) -> Iterator[Sequence[int]]:
    """What `cache` lacks of `context` but for the last token, in pieces of one call each."""
    while (start := len(cache.tokens)) < len(context) - 1:
        yield context[start : min(start + cache.model.prefill_chunk, len(context) - 1)]
