# SPDX-License-Identifier: MIT
"""lightseekorg/TorchSpec: `midlayer.*`, or `layers.0.*` after its export.

Natively ids count the block after which a feature was captured. Until June 2026 only the export for vLLM
wrote `layers.0.*`, and added the missing 1 for `model_type: kimi_k2`; since 2026-06-30 every export writes
`layers.0.*`, so that ids under kimi_k2 may count either way. Distinguished from SpecForge by
`num_aux_hidden_states` or `eagle_config.use_aux_hidden_state`, from Model Optimizer by `_torchspec_version`
where the export wrote it.

Until 2026-08-09 rope read `config.rope_theta`, which transformers 5 moves into rope_parameters: scaled rope
then fell back to 10000 (torchspec/models/draft/llama3_eagle.py, deepseek_eagle.py). Linear scaling never read
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..readings import Choice, Convention, ignored_theta
from .base import Dialect, Seen


class TorchSpec(Dialect):
    name = "torchspec"
    conventions = (None, "post")
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
            return None
        return super().convention(seen, ids_key)

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        kinds = ("yarn", "deepseek_yarn", "llama3", "linear")
        return ignored_theta(config, "TorchSpec before 2026-08-09 may have trained", kinds)
