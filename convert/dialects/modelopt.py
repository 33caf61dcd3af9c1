# SPDX-License-Identifier: MIT
"""NVIDIA Model Optimizer, Hugging Face export: `layers.{i}.*` with a rich `eagle_config`.

Earlier exports, and Megatron exports of a single layer, call the layer `midlayer.*`; the tensors are the
same. Ids in `eagle_config` count the block whose output was hooked.
"""

from __future__ import annotations

from ..layer_ids import Convention
from .base import Dialect, Seen

__all__ = ["ModelOpt"]

_OWN_KEYS = ("use_mtp_layernorm", "next_layer_regular", "parallel_draft_step")


class ModelOpt(Dialect):
    name = "modelopt"
    title = "NVIDIA Model Optimizer"

    def matches(self, seen: Seen) -> bool:
        own = any(key in seen.eagle_config for key in _OWN_KEYS)
        return own or (seen.has("layers.0.") and "use_aux_hidden_state" in seen.eagle_config)

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        return "post" if ids_key == "eagle_config" else None
