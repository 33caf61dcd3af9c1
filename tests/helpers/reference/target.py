# SPDX-License-Identifier: MIT
"""A target of the Llama family in PyTorch, with its features R_k and its logits.

The target is read from the Hugging Face directory of a `llama`, `qwen2` or `qwen3` model. Biases and q/k
norms are used if the directory has their tensors. R_k is the residual stream that enters the 0-based block k.
R_n is the output of the last block before the final norm, and id n + 1 is the state after the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from .checkpoint import load_config, load_weights
from .layers import AttentionShape, Rope, attention, mlp, rms, sees


class Target:
    """A target with one sequence in its KV cache."""

    def __init__(self, directory: Path, layers: Sequence[int]) -> None:
        """Reads a target. `layers`: ids k of the features R_k that `forward` returns, in this order."""
        config = load_config(directory)
        self.w = load_weights(directory)
        self.taps = list(layers)
        self.shape = AttentionShape.of(config)
        self.rope = Rope(config, self.shape.head_dim)
        self.n_layers = int(config["num_hidden_layers"])
        self.embedding = self.w["embed_tokens.weight"]
        self.head = self.w.get("lm_head.weight", self.embedding)
        self.reset()

    def reset(self) -> None:
        self.cache = [self.shape.cache() for _ in range(self.n_layers)]

    @property
    def n_tokens(self) -> int:
        return self.cache[0].k.shape[0]

    def truncate(self, n_tokens: int) -> None:
        for cache in self.cache:
            cache.truncate(n_tokens)

    @torch.no_grad()
    def forward(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends tokens to the sequence. Returns features `[n_taps, n_tokens, hidden]` and logits
        `[n_tokens, n_vocab]`.
        """
        positions = torch.arange(self.n_tokens, self.n_tokens + len(tokens))
        visible = sees(len(tokens), self.n_tokens)
        h = self.embedding[torch.tensor(list(tokens))]
        residual = []
        for i, cache in enumerate(self.cache):
            residual.append(h)
            name, eps = f"layers.{i}", self.shape.eps
            u = rms(h, self.w[f"{name}.input_layernorm.weight"], eps)
            h = h + attention(
                u, self.w, f"{name}.self_attn", self.shape, self.rope, positions, visible, cache
            )
            m = rms(h, self.w[f"{name}.post_attention_layernorm.weight"], eps)
            h = h + mlp(m, self.w, f"{name}.mlp")
        normed = rms(h, self.w["norm.weight"], self.shape.eps)
        residual += [h, normed]
        return torch.stack([residual[k] for k in self.taps]), normed @ self.head.T
