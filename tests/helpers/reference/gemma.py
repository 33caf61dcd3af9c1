# SPDX-License-Identifier: MIT
"""EAGLE-3 with Gemma 4's layer, in PyTorch. Names and config are DeepSpec's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .checkpoint import Weights
from .drafter import Drafter
from .layers import Rope, attention, mlp, rms


class PartialRope(Rope):
    """RoPE that rotates only the first part of a head, with the frequencies of the whole head."""

    def __init__(self, config: dict[str, Any], head_dim: int) -> None:
        super().__init__({"rope_theta": config["rope_theta"]}, head_dim)
        n_turned = int(config["partial_rotary_factor"] * head_dim // 2)
        self.inv_freq[n_turned:] = 0.0


class GemmaDrafter(Drafter):
    """A `Drafter` whose layer has norms before and after each part, normed values, unscaled scores and
    GELU.
    """

    def __init__(self, config: dict[str, Any], weights: Weights, *tables: torch.Tensor | None) -> None:
        heads = config["num_global_key_value_heads" if config["attention_k_eq_v"] else "num_key_value_heads"]
        flat = config | {
            "head_dim": config["global_head_dim"],
            "num_key_value_heads": heads,
            "layer_types": None,
        }
        flat["sliding_window"] = None
        flat["rope_parameters"] = None
        self.softcap = float(config.get("final_logit_softcapping") or 0.0)
        super().__init__(flat, weights, *tables)
        self.rope = PartialRope(config["rope_parameters"]["full_attention"], self.shape.head_dim)

    def embedded(self, tokens: Sequence[int]) -> torch.Tensor:
        return super().embedded(tokens) * math.sqrt(self.embedding.shape[-1])

    def after(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Applies the norm that follows a part of the layer."""
        return rms(x, self.w[f"{name}.weight"], self.eps)

    def rows(
        self, feature: torch.Tensor, tokens: Sequence[int], positions: torch.Tensor, visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits, states = super().rows(feature, tokens, positions, visible)
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits, states

    def layer(
        self, i: int, h: torch.Tensor, tokens: Sequence[int], positions: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        name, shape, w = f"layers.{i}", self.shape, self.w
        normed = rms(h, w[f"{name}.hidden_norm.weight"], self.eps)
        u = self.concat(rms(self.embedded(tokens), w[f"{name}.input_layernorm.weight"], self.eps), normed)
        out = attention(
            u, w, f"{name}.self_attn", shape, self.rope, positions, visible, self.cache[i], is_gemma=True
        )
        h = h + self.after(out, f"{name}.post_attention_layernorm")
        m = rms(h, w[f"{name}.pre_feedforward_layernorm.weight"], self.eps)
        return h + self.after(mlp(m, w, f"{name}.mlp", is_gemma=True), f"{name}.post_feedforward_layernorm")
