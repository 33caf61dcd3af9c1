# SPDX-License-Identifier: MIT
"""A target of the deepseek2 family in PyTorch: latent attention, one dense block, then experts.

The experts are DeepSeek-V2's: a softmax over all experts, the best of them without renormalisation, and a
shared expert. Weights have Hugging Face's names, with the experts of a block stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from .layers import LatentAttention, mlp, rms, sees


class LatentTarget:
    """The target; it computes features and logits of one prompt. `layers`: ids k of the features R_k."""

    def __init__(
        self, config: dict[str, Any], weights: Mapping[str, torch.Tensor], n_used: int, layers: Sequence[int]
    ) -> None:
        self.w, self.n_used, self.layers = dict(weights), n_used, layers
        self.attention = LatentAttention(config)
        self.eps = self.attention.eps
        self.n_layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))

    @torch.no_grad()
    def forward(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes a prompt. Returns features `[n_layers, n_tokens, width]` and logits `[n_tokens,
        n_vocab]`.
        """
        n_tokens = len(tokens)
        positions, visible = torch.arange(n_tokens), sees(n_tokens, 0)
        h = self.w["embed_tokens.weight"][torch.tensor(list(tokens))]
        residual = []
        for i in range(self.n_layers):
            residual.append(h)
            name = f"layers.{i}"
            u = rms(h, self.w[f"{name}.input_layernorm.weight"], self.eps)
            h = h + self.attention(u, self.w, f"{name}.self_attn", positions, visible, self.attention.cache())
            m = rms(h, self.w[f"{name}.post_attention_layernorm.weight"], self.eps)
            experts = f"{name}.mlp.gate.weight" in self.w
            h = h + (self.experts(m, f"{name}.mlp") if experts else mlp(m, self.w, f"{name}.mlp"))
        residual.append(h)
        logits = rms(h, self.w["norm.weight"], self.eps) @ self.w["lm_head.weight"].T
        return torch.stack([residual[k] for k in self.layers]), logits

    def experts(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        share, chosen = (x @ self.w[f"{prefix}.gate.weight"].T).softmax(-1).topk(self.n_used)
        gate, up, down = (self.w[f"{prefix}.experts.{p}_proj.weight"][chosen] for p in ("gate", "up", "down"))
        inner = F.silu(torch.einsum("neih,nh->nei", gate, x)) * torch.einsum("neih,nh->nei", up, x)
        said = torch.einsum("nehi,nei,ne->nh", down, inner, share)
        return said + mlp(x, self.w, f"{prefix}.shared_experts")
