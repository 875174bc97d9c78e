"""What a draft is trained for: that the target keeps its tokens.

Rejection sampling keeps a draft token with probability Σ min(p, q), which is 1 − the total
variation between target p and draft q (Leviathan et al. 2022, corollary 3.6). Training on it
directly is one of DistillSpec's objectives (Zhou et al. 2023, arXiv:2310.08461). Its gradient
vanishes where q is nowhere near p, so Kullback-Leibler divergence is mixed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_NEVER = 1e-7


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that a step's normaliser looks at: `ids`, shape (c,), distinct; `log_weights`,
    shape (c,), is how many tokens each stands for, as a logarithm; `places`, shape (n, k),
    where the target's likeliest tokens are among them.
    """

    ids: npt.NDArray[np.int64]
    log_weights: npt.NDArray[np.float32]
    places: npt.NDArray[np.int64]


def candidates(
    top_ids: npt.NDArray[np.int64], vocabulary: int, others: int, rng: np.random.Generator
) -> Candidates:
    """All tokens in `top_ids`, and `others` of the rest, drawn uniformly, which stand for all
    of the rest: the sum over them, so weighted, is an unbiased estimate of the softmax
    denominator (importance sampling; Bengio & Senécal 2003). Everything when that is fewer.
    """
    known, places = np.unique(top_ids, return_inverse=True)
    rest = np.setdiff1d(np.arange(vocabulary), known, assume_unique=True)
    weight = 0.0
    if others < len(rest):
        weight = float(np.log(len(rest) / others))
        rest = rng.choice(rest, others, replace=False)
    log_weights = np.zeros(len(known) + len(rest), np.float32)
    log_weights[len(known) :] = weight
    ids = np.concatenate([known, rest]).astype(np.int64)
    return Candidates(ids, log_weights, places.reshape(top_ids.shape))


def acceptance_and_kl(
    logits: Tensor, log_weights: Tensor, places: Tensor, top_logprobs: Tensor
) -> tuple[Tensor, Tensor]:
    """Per position, shape (n,): Σ min(p, q) over the target's k likeliest tokens, and
    KL(p ‖ q) with everything else as one token (both are lower bounds, exact at k = all).

    `logits` are the draft's, shape (n, c), over candidates with `log_weights` (c,); `places`
    (n, k) are the k tokens' columns, `top_logprobs` (n, k) log p.
    """
    log_z = torch.logsumexp(logits + log_weights, dim=1, keepdim=True)
    log_q = logits.gather(1, places) - log_z
    p, q = top_logprobs.exp(), log_q.exp()
    acceptance = torch.minimum(p, q).sum(dim=1)
    p_rest = (1 - p.sum(dim=1)).clamp(min=_NEVER)
    q_rest = (1 - q.sum(dim=1)).clamp(min=_NEVER)
    kl = (p * (top_logprobs - log_q)).sum(dim=1) + p_rest * (p_rest.log() - q_rest.log())
    return acceptance, kl


def mixed(acceptance: Tensor, kl: Tensor, kl_share: float) -> Tensor:
    """Mean over positions of kl_share · KL + (1 − kl_share) · (1 − acceptance)."""
    return (kl_share * kl + (1 - kl_share) * (1 - acceptance)).mean()
