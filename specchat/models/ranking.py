"""Which local draft would make a target fastest: a prediction, and reasons for refusals.

Predicted speedup = max over k of (1 + a + a² + … + aᵏ) / (v(k + 1) + k·c)

(Leviathan et al. 2022, with the target's own cost curve instead of free verification.)

- k: draft length, 0 to 16. At 0 the speedup is 1: specchat then does not draft.
- v(n): cost of a target call with n tokens relative to one token. Measured on this machine
  where the target was run before, else the table below, by the target's type.
- c: a draft step relative to a target call with one token. Measured where this pair was run
  before, else the ratio of the weight bytes each reads for a token.
- a: chance that the target keeps a draft token. Learned where this pair was run before, else
  a prior by size ratio: 0.88 − 0.04·ln(target bytes / draft bytes), which runs through the
  figures Leviathan et al. 2022 give for drafts 17, 68 and 1370 times smaller; less 0.1 (a
  guess) where the two are not of one family.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specchat.engine.calibration_files import Kept, file_identity, kept_calibrations
from specchat.engine.costs import tokens_per_call
from specchat.engine.header import read_header
from specchat.engine.pairing import PairFit, check_pair
from specchat.engine.sampling import Floats
from specchat.errors import ModelFileError
from specchat.models.discovery import Found
from specchat.models.facts import Facts

LONGEST = 16
# Relative cost of a target call with n tokens, by type: two Zen 4 cores, SmolLM2-135M,
# llama-cpp-python 0.3.36, context 200.
_COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_TABLE = {
    "Q4_1": (1.0, 1.80, 2.22, 2.62, 3.40, 3.84, 4.42, 6.27, 8.05),
    "Q4_0": (1.0, 1.66, 2.15, 2.46, 3.33, 3.85, 3.89, 5.29, 5.87),
    "Q8_0": (1.0, 2.13, 2.55, 2.65, 3.36, 3.68, 3.89, 4.78, 5.80),
    "Q4_K": (1.0, 1.52, 1.83, 2.12, 2.81, 3.14, 3.41, 4.69, 5.75),
    "F16": (1.0, 2.10, 2.23, 2.39, 2.38, 2.56, 3.19, 4.24, 4.96),
    "BF16": (1.0, 1.56, 1.90, 2.05, 2.09, 2.24, 2.49, 3.13, 3.76),
}
_ENOUGH = 20.0  # judged draft tokens that outweigh the prior


@dataclass(frozen=True, slots=True)
class RankedDraft:
    """A draft for a target: whether it fits (`fit.reason` why not) and what to expect.

    `speedup` is predicted, relative to plain decoding, at draft length `length`, from
    `acceptance` a and `step` c; `basis` says where those come from. All are 0 and "" for a
    refused draft.
    """

    found: Found
    fit: PairFit
    speedup: float = 0.0
    length: int = 0
    acceptance: float = 0.0
    step: float = 0.0
    basis: str = ""


def rank_drafts(target: Found, found: Iterable[Found]) -> list[RankedDraft]:
    """Every model of `found` as a draft for `target`: those that fit by predicted speedup,
    best first, then the refused ones by name. Raises ModelFileError for a target that cannot
    be read.
    """
    if target.facts is None:
        raise ModelFileError(target.problem)
    calibrations = [k for k in kept_calibrations() if _about(k, target.path)]
    curve, origin = _curve(target.facts, calibrations)
    fits: dict[tuple[object, ...], PairFit] = {}
    ranked = []
    for other in found:
        fit = _fit(target, other, fits)
        if not fit.fits or other.facts is None:
            ranked.append(RankedDraft(other, fit))
            continue
        pair = next((k for k in calibrations if _drafted_by(k, other.path)), None)
        step, acceptance, basis = _expect(target.facts, other.facts, pair)
        speedup, length = predict(acceptance, curve, step)
        ranked.append(
            RankedDraft(other, fit, speedup, length, acceptance, step, f"{origin}; {basis}")
        )
    return sorted(ranked, key=lambda r: (not r.fit.fits, -r.speedup, r.found.name.casefold()))


def predict(acceptance: float, curve: Floats, step: float) -> tuple[float, int]:
    """Speedup and the draft length it is reached at. `curve[n - 1]` is the relative cost of a
    target call with n tokens, shape (LONGEST + 1,); `step` that of a draft step.
    """
    lengths = np.arange(LONGEST + 1)
    rates = tokens_per_call(np.full(LONGEST, acceptance)) / (curve + lengths * step)
    best = int(rates.argmax())
    return float(rates[best]), best


def _fit(target: Found, other: Found, known: dict[tuple[object, ...], PairFit]) -> PairFit:
    """Vocabularies are compared once for each kind of them, not for each file."""
    a, b = target.facts, other.facts
    if b is None:
        return PairFit(False, other.problem)
    assert a is not None
    if _same(target.path, other.path):
        return PairFit(False, "it is the target itself")
    key = (*b.tokenizer, b.vocabulary, b.fingerprint)
    if key not in known:
        try:
            headers = (read_header(f.path, check_tensors=False) for f in (target, other))
            known[key] = check_pair(*headers)
        except ModelFileError as error:  # it changed since it was listed
            return PairFit(False, str(error))
    fit = known[key]
    if fit.fits and b.step_bytes >= a.step_bytes:
        return PairFit(False, "it is no smaller than the target, so drafting with it cannot pay")
    return fit


def _curve(facts: Facts, calibrations: Sequence[Kept]) -> tuple[Floats, str]:
    counts = np.arange(1, LONGEST + 2)
    for kept in calibrations:
        if kept.costs.target:
            seconds = kept.costs.target.table(counts, 0)
            return seconds / seconds[0], "cost curve measured here"
    kind = facts.quantisation
    row = kind if kind in _TABLE else _nearest(kind)
    known = np.array(_TABLE[row])
    curve = np.interp(counts, _COUNTS, known)
    curve[-1] += (known[-1] - known[-2]) / (_COUNTS[-1] - _COUNTS[-2])
    return curve, f"{row} cost curve of another machine"


def _nearest(kind: str) -> str:
    """The measured type whose kernels are most like those of `kind`."""
    if kind == "F32":
        return "F16"
    return "Q8_0" if kind in ("Q5_0", "Q5_1") else "Q4_K"


def _expect(target: Facts, draft: Facts, pair: Kept | None) -> tuple[float, float, str]:
    """Step cost c, acceptance a, and where they come from."""
    ratio = target.step_bytes / max(draft.step_bytes, 1)
    step, acceptance = 1 / ratio, prior_acceptance(ratio, target.family == draft.family)
    basis = "acceptance and step cost by size"
    if pair is not None and pair.costs.draft:
        step = pair.costs.draft.seconds(1, 0) / pair.costs.target.seconds(1, 0)
        basis = "step cost measured here, acceptance by size"
        judged, kept = max(pair.judged.values(), default=(0.0, 0.0))
        if judged >= _ENOUGH:
            acceptance = kept / judged
            basis = "step cost and acceptance measured here"
    return step, acceptance, basis


def prior_acceptance(ratio: float, related: bool) -> float:
    """Expected acceptance of a draft that reads `ratio` times fewer bytes than its target."""
    guess = 0.88 - 0.04 * math.log(max(ratio, 1.0)) - (0.0 if related else 0.1)
    return min(max(guess, 0.05), 0.95)


def _about(kept: Kept, path: Path) -> bool:
    return _is(kept, 0, path)


def _drafted_by(kept: Kept, path: Path) -> bool:
    return _is(kept, 1, path)


def _is(kept: Kept, position: int, path: Path) -> bool:
    try:
        return len(kept.files) > position and kept.files[position] == file_identity(path)
    except OSError:
        return False


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False
