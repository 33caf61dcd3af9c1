# SPDX-License-Identifier: MIT
"""NVIDIA NeMo Automodel: the whole body after `model.` (`model.layers.0.*`, `model.fc.weight`); biases
possible. P-EAGLE's `mask_hidden` belongs to the class around the body.
"""

from __future__ import annotations

from ..parallel import MASK_FEATURE
from .base import Dialect, Seen

__all__ = ["Automodel"]

_OUTSIDE = ("lm_head.weight", "d2t", "t2d", MASK_FEATURE)


class Automodel(Dialect):
    name = "automodel"
    title = "NeMo Automodel"

    def matches(self, seen: Seen) -> bool:
        body = [name for name in seen.shapes if name not in _OUTSIDE]
        return bool(body) and all(name.startswith("model.") for name in body) and seen.has("layers.0.")
