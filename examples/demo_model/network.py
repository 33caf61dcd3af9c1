# SPDX-License-Identifier: MIT
"""The demo target: a deep, narrow Llama network in PyTorch with tied embeddings.

It is deep so that a drafter of one layer is cheap in comparison. Parameters have the names of the GGUF's
tensors, so no mapping is needed to write the file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Network", "Shape"]


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. A drafter's layer has 1.2 M parameters, a twelfth as many as the 14 layers."""

    n_vocab: int = 4096
    n_layer: int = 14
    n_embd: int = 320
    n_ff: int = 832
    n_head: int = 5
    n_head_kv: int = 1
    n_ctx: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        n_kv = shape.n_head_kv * shape.head_dim
        self.attn_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.attn_q = nn.Linear(shape.n_embd, shape.n_embd, bias=False)
        self.attn_k = nn.Linear(shape.n_embd, n_kv, bias=False)
        self.attn_v = nn.Linear(shape.n_embd, n_kv, bias=False)
        self.attn_output = nn.Linear(shape.n_embd, shape.n_embd, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.ffn_gate = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.ffn_up = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.ffn_down = nn.Linear(shape.n_ff, shape.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = self.shape
        n_rows, n_tokens, _ = x.shape
        h = F.rms_norm(x, (shape.n_embd,), self.attn_norm, shape.norm_eps)
        q = self.attn_q(h).view(n_rows, n_tokens, shape.n_head, shape.head_dim).transpose(1, 2)
        k = self.attn_k(h).view(n_rows, n_tokens, shape.n_head_kv, shape.head_dim).transpose(1, 2)
        v = self.attn_v(h).view(n_rows, n_tokens, shape.n_head_kv, shape.head_dim).transpose(1, 2)
        out = _attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
        x = x + self.attn_output(out.transpose(1, 2).reshape(n_rows, n_tokens, shape.n_embd))
        h = F.rms_norm(x, (shape.n_embd,), self.ffn_norm, shape.norm_eps)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Network(nn.Module):
    """Computes the mean loss of predicting tokens[:, 1:]: tokens i64 [B, S], weights f32 [B, S - 1]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blk = nn.ModuleList(_Block(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.Parameter(torch.ones(shape.n_embd))
        cos, sin = _rotations(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def forward(self, tokens: Tensor, weights: Tensor) -> Tensor:
        n_tokens = tokens.shape[1]
        x = self.token_embd(tokens)
        cos, sin = self.cos[:n_tokens].to(x.dtype), self.sin[:n_tokens].to(x.dtype)
        for block in self.blk:
            x = block(x, cos, sin)
        x = F.rms_norm(x, (self.shape.n_embd,), self.output_norm, self.shape.norm_eps)
        logits = F.linear(x.flatten(0, 1), self.token_embd.weight).float()
        labels, weight = F.pad(tokens[:, 1:], (0, 1)).flatten(), F.pad(weights, (0, 1)).flatten()
        return (F.cross_entropy(logits, labels, reduction="none") * weight).sum() / weight.sum()

    def _initialise(self) -> None:
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for block in self.blk:
            for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
                nn.init.normal_(getattr(block, name).weight, std=self.shape.n_embd**-0.5)
            for name in ("attn_output", "ffn_down"):  # at the start, every block is the identity
                nn.init.zeros_(getattr(block, name).weight)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns causal attention, [B, heads, S, D]. Short rows use plain arithmetic, since the flash kernel's
    backward pass is slow on a CPU.
    """
    n_rows, n_head, n_tokens, dim = q.shape
    n_kv = k.shape[1]
    if n_tokens > 256:
        k, v = k.repeat_interleave(n_head // n_kv, 1), v.repeat_interleave(n_head // n_kv, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grouped = q.reshape(n_rows * n_kv, n_head // n_kv * n_tokens, dim)
    k, v = k.reshape(n_rows * n_kv, n_tokens, dim), v.reshape(n_rows * n_kv, n_tokens, dim)
    scores = torch.bmm(grouped, k.transpose(1, 2)).view(n_rows, n_head, n_tokens, n_tokens)
    later = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=q.device).triu(1)
    p = (scores.float() * dim**-0.5).masked_fill(later, float("-inf")).softmax(-1).to(q.dtype)
    return torch.bmm(p.view_as(scores).reshape(n_rows * n_kv, -1, n_tokens), v).view(q.shape)


def _rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    frequencies = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(4 * shape.n_ctx).float(), frequencies)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates neighbouring pairs, as llama.cpp's `llama` architecture does."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
