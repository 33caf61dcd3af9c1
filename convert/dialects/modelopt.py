# SPDX-License-Identifier: MIT
"""NVIDIA Model Optimizer, Hugging Face export: `layers.{i}.*` with a rich `eagle_config`.

Earlier exports, and Megatron exports of a single layer, call the layer `midlayer.*`; the tensors are the
same. Ids in `eagle_config` count the block whose output was hooked.

The names `layers.0.*` came with a change of the trainer (2025-12-19): the first layer's input_layernorm
became the embedding's norm, where an identity had been, and the decoder layer applies it to the feature as
well, before hidden_norm (modelopt/torch/speculative/plugins/modeling_eagle.py, still so in 0.47.0). Engines
norm the feature once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..readings import Choice, Convention
from .base import Dialect, Seen

_OWN_KEYS = ("next_layer_regular", "parallel_draft_step")
_KIMI_TOO = "use_mtp_layernorm"
"""TorchSpec's draft configs for Kimi have it as well."""


class ModelOpt(Dialect):
    name = "modelopt"
    conventions = (None, "post")
    title = "NVIDIA Model Optimizer"

    def matches(self, seen: Seen) -> bool:
        if "_torchspec_version" in seen.config:
            return False
        own = any(key in seen.eagle_config for key in (*_OWN_KEYS, _KIMI_TOO))
        return own or (seen.has("layers.0.") and "use_aux_hidden_state" in seen.eagle_config)

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        # TorchSpec's export for vLLM looks the same in a kimi_k2 config and counts the other way
        unsure = seen.has("layers.0.") and seen.config.get("model_type") == "kimi_k2"
        if unsure and not any(key in seen.eagle_config for key in _OWN_KEYS):
            return None
        return super().convention(seen, ids_key)

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        if not seen.has("layers.0."):
            return ()
        own = any(key in seen.eagle_config for key in _OWN_KEYS)
        if own and not any(c.get("norm_before_fc") for c in (config, seen.eagle_config)):
            why = (
                "engines norm the feature once, but Model Optimizer's trainer puts input_layernorm before "
                "hidden_norm in layers.0"
            )
            return (Choice("feature_norm", ("twice", "once"), why),)
        why = (
            "Model Optimizer norms the feature of layers.0 twice, if its Hugging Face path trained this: it "
            f"has no norm_before_fc, and writes {' and '.join(_OWN_KEYS)} into eagle_config"
        )
        return (Choice("feature_norm", ("once", "twice"), why),)
