# SPDX-License-Identifier: MIT
"""deepseek-ai/DeepSpec, class `Qwen3Eagle3Model`: a Qwen3 layer (q/k norms), the target's whole vocabulary.

The ids are at the top level as `target_layer_ids` and name the block whose output was hooked
(deepseek-ai/DeepSpec: deepspec/modeling/target_extract.py; common.py reads `hidden_states[id + 1]`); their
number is free, published ones have five. Embeddings and head are frozen copies of the target's. The layer's
arithmetic is EAGLE-3's with the pre-norm state fed back (deepspec/modeling/eagle3/qwen3/modeling.py).
"""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError
from .base import Dialect, Seen

_IDS = "eagle_aux_hidden_state_layer_ids"


class DeepSpec(Dialect):
    name = "deepspec"
    title = "DeepSpec"
    conventions = ("post", "post")
    classes: tuple[str, ...] = ("Qwen3Eagle3Model",)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        if seen.has("layers.1."):
            # Its later layers read [embedding ; state] as well, which those of no other project do.
            raise UnsupportedError(
                "DeepSpec drafter with several layers: not supported, because each of its layers reads "
                "the embedding again"
            )
        config = dict(seen.config)
        ids = config.pop("target_layer_ids", None)
        if ids is None:
            raise UnsupportedError(
                "config.json: target_layer_ids: expected the layers that a Qwen3Eagle3Model reads, found "
                "nothing; DeepSpec always writes them"
            )
        config[_IDS] = ids
        return config
