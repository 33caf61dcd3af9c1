# SPDX-License-Identifier: MIT
"""lightseekorg/TorchSpec: `midlayer.*`, or `layers.0.*` after its export for vLLM.

Natively ids count the block after which a feature was captured; the vLLM export (only for `model_type:
kimi_k2`) adds the missing 1. Distinguished from SpecForge by `num_aux_hidden_states` or
`eagle_config.use_aux_hidden_state`, from Model Optimizer by `_torchspec_version` where the export wrote it.
"""

from __future__ import annotations

from ..layer_ids import Convention
from .base import Dialect, Seen

__all__ = ["TorchSpec"]


class TorchSpec(Dialect):
    name = "torchspec"
    title = "TorchSpec"

    def matches(self, seen: Seen) -> bool:
        if "_torchspec_version" in seen.config:
            return True
        if seen.has("layers.0.") and seen.config.get("model_type") == "kimi_k2":
            return True
        marked = "num_aux_hidden_states" in seen.config or "use_aux_hidden_state" in seen.eagle_config
        return seen.has("midlayer.") and marked

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        if seen.has("layers.0.") and seen.config.get("model_type") == "kimi_k2":
            return "boundary"
        return "post" if ids_key == "eagle_config" else None
