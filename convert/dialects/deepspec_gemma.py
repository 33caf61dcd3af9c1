# SPDX-License-Identifier: MIT
"""deepseek-ai/DeepSpec, class `Gemma4Eagle3Model`: EAGLE-3 around Gemma 4's own decoder layer.

Attention is that of Gemma 4's global layers: wide heads, often without values of their own, only partly
rotated; the norms after attention and after the feed-forward block, the scaled embedding and the soft cap of
the logits are Gemma's too (deepseek-ai/DeepSpec: deepspec/modeling/eagle3/gemma4/modeling.py). Layers with
experts or with embeddings of their own are not built there, and refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import flag, integer, nested, number, wrong
from ..errors import UnsupportedError
from ..tensor import TensorSource
from .base import Seen, canonical_name
from .deepspec import DeepSpec

_NAMES = {
    ".post_attention_layernorm.": ".post_attention_norm.",
    # what other drafters call the norm at this place
    ".pre_feedforward_layernorm.": ".post_attention_layernorm.",
    ".post_feedforward_layernorm.": ".post_feedforward_norm.",
}


class DeepSpecGemma(DeepSpec):
    title = "DeepSpec (Gemma 4)"
    classes = ("Gemma4Eagle3Model",)
    is_gemma = True
    activations = ("gelu_pytorch_tanh",)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        return gemma_config(super().flatten(seen)) | {"layer_types": ["full_attention"]}

    def canonical(self, name: str) -> str | None:
        found = canonical_name(name)
        return None if found is None or found.endswith(".layer_scalar") else gemma_name(found)

    def check(self, tensors: Mapping[str, TensorSource]) -> None:
        for name, source in tensors.items():
            if name.endswith(".layer_scalar") and float(source.read().reshape(-1)[0]) != 1.0:
                raise UnsupportedError(f"tensor {name}: expected 1, which is all that DeepSpec trains with")


def gemma_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A text config of Gemma 4's in the words of other drafters'. Raises ConfigError, UnsupportedError."""
    if flag(config, "enable_moe_block") or number(config, "hidden_size_per_layer_input", 0.0):
        raise UnsupportedError(
            "config.json: enable_moe_block, hidden_size_per_layer_input: Gemma 4 layers with experts "
            "or with embeddings of their own are not supported"
        )
    rope = nested(config, "rope_parameters").get("full_attention")
    if not isinstance(rope, Mapping):
        raise wrong("rope_parameters", "one for full_attention", rope)
    shared = flag(config, "attention_k_eq_v")
    return {
        **config,
        "num_key_value_heads": integer(
            config, "num_global_key_value_heads" if shared else "num_key_value_heads"
        ),
        "head_dim": integer(config, "global_head_dim"),
        "hidden_act": config.get("hidden_activation"),
        "rope_parameters": rope,
    }


def gemma_name(name: str) -> str:
    """A canonical name, norms as they are called where other drafters have them."""
    for theirs, ours in _NAMES.items():
        if theirs in name:
            return name.replace(theirs, ours)
    return name
