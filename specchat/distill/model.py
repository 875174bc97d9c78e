"""The draft in PyTorch: llama.cpp's "llama" architecture, tensor by tensor.

Parameters bear the names that they have in a GGUF, so that writing is copying.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.distill.embeddings import Matrix
from specchat.distill.shape import EPS, HEAD, ROPE_BASE, Shape


class Norm(nn.Module):
    """RMS normalisation (Zhang & Sennrich 2019), computed as llama.cpp does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021) over neighbouring pairs, as llama.cpp has them for
    this architecture. `x` is (b, heads, t, HEAD), `angles` (t, HEAD / 2).
    """
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class Block(nn.Module):
    """Attention over what came before, then a gated feed-forward part (SwiGLU)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, feed = shape.width, shape.feed
        self.heads = shape.heads
        self.attn_norm = Norm(width)
        self.ffn_norm = Norm(width)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.ffn_gate = nn.Linear(width, feed, bias=False)
        self.ffn_up = nn.Linear(width, feed, bias=False)
        self.ffn_down = nn.Linear(feed, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        b, t, width = x.shape
        normed = self.attn_norm(x)
        q, k, v = (
            part(normed).view(b, t, self.heads, HEAD).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        seen = F.scaled_dot_product_attention(
            rotate(q, angles), rotate(k, angles), v, is_causal=True
        )
        x = x + self.attn_output(seen.transpose(1, 2).reshape(b, t, width))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


class DraftModel(nn.Module):
    """`forward` gives normed states, shape (b, t, width); logits are their products with the
    rows of `token_embd.weight`.
    """

    def __init__(self, shape: Shape, embeddings: Matrix, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width)
        frequencies = ROPE_BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("frequencies", frequencies, persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                spread = weight.shape[1] ** -0.5
                if name.endswith(("attn_output.weight", "ffn_down.weight")):
                    spread *= (2 * shape.layers) ** -0.5  # as in GPT-2: states keep their size
                nn.init.normal_(weight, std=spread)
        with torch.no_grad():
            self.token_embd.weight.copy_(torch.from_numpy(embeddings))

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens`, shape (b, t). Padding must come last: nothing looks ahead."""
        x = self.token_embd(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        angles = positions[:, None] * self.frequencies[None, :]
        for block in self.blk:
            x = block(x, angles)
        return self.output_norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """Over the whole vocabulary: shape (…, vocabulary)."""
        return states @ self.token_embd.weight.T
