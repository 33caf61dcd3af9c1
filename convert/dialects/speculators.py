# SPDX-License-Identifier: MIT
"""vllm-project/speculators: the layer's config nested in `transformer_layer_config`, `layers.{i}.*`, boundary
ids.

Flattened as vLLM does it (vllm-project/vllm: transformers_utils/configs/speculators/algos.py): the nested
config is the base, the top level goes over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import nested, wrong
from ..errors import ConfigError
from .base import Dialect, Seen


class Speculators(Dialect):
    name = "speculators"
    title = "speculators"
    conventions = ("boundary", "boundary")
    classes = ("Eagle3Speculator", "Eagle3DraftModel", "PEagleSpeculator")

    def matches(self, seen: Seen) -> bool:
        return any(key in seen.config for key in ("transformer_layer_config", "speculators_config"))

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = nested_config(seen.config)
        if seen.config.get("norm_before_residual") is None:
            raise ConfigError(
                "config.json: norm_before_residual: expected true or false, found nothing; vLLM would read "
                "true, the "
                "speculators class false. Add the value the drafter was trained with (the training CLI's "
                "default "
                "is true)"
            )
        return config


def nested_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The layer's config with the top level over it. Raises ConfigError."""
    layer = nested(config, "transformer_layer_config")
    if not layer:
        raise wrong("transformer_layer_config", "an object", None)
    # Copied from the target: whether that ties its head says nothing about the draft.
    base = {key: value for key, value in layer.items() if key != "tie_word_embeddings"}
    return {**base, **{key: value for key, value in config.items() if value is not None}}
