# SPDX-License-Identifier: MIT
"""NVIDIA NeMo Automodel: the whole body after `model.` (`model.layers.0.*`, `model.fc.weight`); biases
possible. P-EAGLE's `mask_hidden` belongs to the class around the body.

Of yarn, its latent attention (nemo_automodel/components/speculative/eagle/draft_deepseek.py) has the
frequencies alone (components/models/deepseek_v3/rope_utils.py).
"""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError
from ..parallel import MASK_FEATURE
from ..rope import rope_kind
from .base import Dialect, Seen

_OUTSIDE = ("lm_head.weight", "d2t", "t2d", MASK_FEATURE)


class Automodel(Dialect):
    name = "automodel"
    title = "NeMo Automodel"
    classes = ("LlamaEagle3DraftModel",)

    def matches(self, seen: Seen) -> bool:
        body = [name for name in seen.shapes if name not in _OUTSIDE]
        return bool(body) and all(name.startswith("model.") for name in body) and seen.has("layers.0.")

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = dict(seen.config)
        if seen.has_latent_tensors and rope_kind(config) != "default":
            raise UnsupportedError(
                f"latent attention of {self.title} with rope type {rope_kind(config)}: not supported, its "
                "yarn has frequencies alone, and other engines multiply the scores"
            )
        return config
