# SPDX-License-Identifier: MIT
"""NVIDIA NeMo Automodel: the whole body after `model.` (`model.layers.0.*`, `model.fc.weight`); biases
possible. P-EAGLE's `mask_hidden` belongs to the class around the body.

Of yarn, its latent attention (nemo_automodel/components/speculative/eagle/draft_deepseek.py) has the
frequencies alone: neither cos and sin nor the scores are multiplied by anything, and a block without both
betas or with an original context that is not the shorter one scales nothing
(components/models/deepseek_v3/rope_utils.py).
"""

from __future__ import annotations

from typing import Any

from ..config import number
from ..parallel import MASK_FEATURE
from ..rope import rope_kind, scaling_block, stated_theta
from .base import Dialect, Seen

_OUTSIDE = ("lm_head.weight", "d2t", "t2d", MASK_FEATURE)
_ORIGINAL = "original_max_position_embeddings"


class Automodel(Dialect):
    name = "automodel"
    title = "NeMo Automodel"
    classes = ("LlamaEagle3DraftModel",)
    latent_magnitude = "none"

    def matches(self, seen: Seen) -> bool:
        body = [name for name in seen.shapes if name not in _OUTSIDE]
        return bool(body) and all(name.startswith("model.") for name in body) and seen.has("layers.0.")

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = dict(seen.config)
        if not seen.has_latent_tensors or rope_kind(config) not in ("yarn", "deepseek_yarn"):
            return config
        block = scaling_block(config)[1]
        told = all(key in block for key in ("factor", "beta_fast", "beta_slow", _ORIGINAL))
        if not told or number(config, "max_position_embeddings", 4096) <= number(block, _ORIGINAL, 0):
            plain = {"rope_type": "default", "rope_theta": stated_theta(config)}
            config |= {"rope_parameters": plain, "rope_scaling": None}
        return config
