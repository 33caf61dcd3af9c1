# SPDX-License-Identifier: MIT
"""vllm-project/speculators' block drafters: the layer's config nested, boundary ids, and both kinds of slots
(speculators/models/dflash, dspark and dflash2: config.py). Rows of layers that slide see their whole block
where `sliding_window_non_causal` says so, which DFlash2's class does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import flag, id_list
from .base import Seen
from .block import BlockDialect
from .speculators import nested_config


class SpeculatorsBlock(BlockDialect):
    name = "speculators-block"
    title = "speculators (block drafters)"
    kinds = ("dflash", "dspark", "dflash2")
    conventions = ("boundary", None)
    classes = ("DFlashSpeculator", "DSparkSpeculator", "DFlash2Speculator")

    def matches(self, seen: Seen) -> bool:
        return seen.config.get("speculators_model_type") in self.kinds

    def flatten(self, seen: Seen) -> dict[str, Any]:
        kind = seen.config["speculators_model_type"]
        nested = Seen(nested_config(seen.config), seen.shapes)
        config = super().flatten(nested)
        if kind == "dspark":
            config["anchor_first"] = flag(config, "sample_from_anchor", True)
        config["sliding_window_non_causal"] = flag(config, "sliding_window_non_causal", kind == "dflash2")
        return config

    def layer_ids(self, config: Mapping[str, Any]) -> list[int] | None:
        ids = id_list(config, "aux_hidden_state_layer_ids")
        return list(ids) if ids else None
