# SPDX-License-Identifier: MIT
"""EAGLE-1 and EAGLE-2 checkpoints, which are the same: EAGLE-2 only drafts trees of another shape.

`fc` takes `[embedding ; feature]` and gives what an ordinary decoder layer reads; that layer has no norm
before attention, and the target's own head reads its output without a norm (SafeAILab/EAGLE:
eagle/model/cnets1.py). The feature is the target's last hidden state after its final norm, what its head
reads (eagle/model/ea_model.py; SafeAILab/EAGLE#76). Trained by SafeAILab, LeptonAI and others; SGLang's
copies are named `LlamaForCausalLMEagle`, vLLM's `EagleLlamaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import shown
from ..errors import ConfigError
from ..readings import Choice
from .base import Dialect, Seen
from .eagle_repo import theta_of_scaled_rope


class Eagle1(Dialect):
    name = "eagle1"
    title = "SafeAILab/EAGLE 1 and 2"
    fuses_embedding = True
    also = ("EagleLlamaForCausalLM", "LlamaForCausalLMEagle", "Qwen2ForCausalLM", "Qwen2ForCausalLMEagle")
    """Classes beside those of EAGLE-3 drafters; each is dense, whatever the target is."""

    def matches(self, seen: Seen) -> bool:
        fc, q = seen.shape("fc.weight"), seen.shape("layers.0.self_attn.q_proj.weight")
        if fc is None or q is None or len(fc) != 2 or len(q) != 2:
            return False
        # an EAGLE-3 layer reads twice its width and has a norm for the feature
        return fc[1] == 2 * fc[0] and q[1] == fc[0] and not seen.has("layers.0.hidden_norm.")

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = dict(seen.config)
        for key, tensor in (("bias", "fc.bias"), ("qkv_bias", "layers.0.self_attn.q_proj.bias")):
            told, found = config.get(key), seen.shape(tensor) is not None
            if told is not None and told is not found:
                raise ConfigError(
                    f"config.json: {key} is {shown(told)}, but the checkpoint has {'a' if found else 'no'} "
                    f"tensor {tensor}; set it to what the drafter was trained with"
                )
        return config

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        return theta_of_scaled_rope(config)
