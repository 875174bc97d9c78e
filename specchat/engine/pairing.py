"""Whether a draft fits a target: decided from two headers, before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from specchat.engine.header import Header
from specchat.errors import PairMismatchError

# llama.cpp's own speculative code accepts vocabularies padded apart by this much
# (common/speculative.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE).
MAX_PADDING = 128
_SPECIALS = ("bos_token_id", "eos_token_id")


@dataclass(frozen=True, slots=True)
class PairFit:
    """`reason` says why the draft is refused ("" where it fits); `note` what to know."""

    fits: bool
    reason: str = ""
    note: str = ""


def check_pair(target: Header, draft: Header) -> PairFit:
    """Compare tokenizer kind, special tokens, size, and the text of every shared id."""
    names = ("tokenizer model", "tokenizer pre", "bos_token_id", "eos_token_id", "add_bos_token")
    identities = target.tokenizer_identity, draft.tokenizer_identity
    for name, a, b in zip(names, *identities, strict=True):
        unset = name in _SPECIALS and (a is None or b is None)
        if a != b and not unset:
            return PairFit(False, f"{name} is {a!r} in the target and {b!r} in the draft")
    sizes = target.vocabulary_size, draft.vocabulary_size
    if target.vocabulary_fingerprint() != draft.vocabulary_fingerprint():
        pairs = zip(target.tokens(), draft.tokens(), strict=False)
        for token, (x, y) in enumerate(islice(pairs, min(sizes))):
            if x != y:
                return PairFit(
                    False,
                    f"token {token} is {_shown(x)} in the target and {_shown(y)} in the draft",
                )
        if abs(sizes[0] - sizes[1]) > MAX_PADDING:
            return PairFit(
                False,
                f"the target has {sizes[0]} tokens and the draft {sizes[1]}, "
                f"more than {MAX_PADDING} apart",
            )
        return PairFit(True, note=f"vocabularies differ only by padding: {sizes[0]}, {sizes[1]}")
    return PairFit(True, note="vocabularies are identical")


def require_pair(target: Header, draft: Header) -> None:
    """Raises PairMismatchError naming the first difference."""
    fit = check_pair(target, draft)
    if not fit.fits:
        raise PairMismatchError(
            f"{draft.path.name} cannot draft for {target.path.name}: {fit.reason}. "
            "Choose a draft of the same model family, or none (lookup drafting needs none)."
        )


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))
