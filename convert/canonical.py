# SPDX-License-Identifier: MIT
"""The tensors of a checkpoint under canonical names, without exporters' oddities.

Prefixes are stripped, never-used buffers dropped, the one attention norm of later layers named alike, and a
tied head made explicit. What comes out is compared with `mapping.slots` and read by `stream.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import flag
from .dialects import Dialect
from .errors import CheckpointError, ConfigError, TensorError
from .parallel import MASK_FEATURE
from .tensor import TensorSource

__all__ = ["canonical_tensors"]

Sources = dict[str, TensorSource]


def canonical_tensors(
    tensors: Mapping[str, TensorSource], config: Mapping[str, Any], dialect: Dialect
) -> Sources:
    """Sources by canonical name. config: flattened. Raises CheckpointError, TensorError, ConfigError."""
    found: Sources = {}
    for name, source in tensors.items():
        canonical = dialect.canonical(name)
        if canonical is None:
            continue
        if canonical in found:
            raise CheckpointError(
                f"tensors {found[canonical].name} and {name} are the same one under two names"
            )
        found[canonical] = source
    if MASK_FEATURE in found:  # [1, 1, n] or [1, n]
        source = found[MASK_FEATURE]
        found[MASK_FEATURE] = replace(source, shape=(math.prod(source.shape),))
    return _tie_head(_one_attention_norm(found), config)


def _one_attention_norm(sources: Sources) -> Sources:
    """Later layers have one norm before attention; exporters call it input_layernorm or hidden_norm."""
    renamed: Sources = {}
    for name, source in sources.items():
        layer, found, suffix = name.rpartition(".hidden_norm")
        wanted = f"{layer}.input_layernorm{suffix}"
        if not found or layer == "layers.0":
            renamed[name] = source
        elif wanted in sources:
            raise TensorError(f"tensors {name} and {wanted}: expected one norm before attention, found both")
        else:
            renamed[wanted] = source
    return renamed


def _tie_head(sources: Sources, config: Mapping[str, Any]) -> Sources:
    """A head that is in the file is the drafter's, whatever the config says: trainers copy the key from the
    target's, and one with a row per draft token cannot be tied.
    """
    if not flag(config, "tie_word_embeddings") or "lm_head.weight" in sources:
        return sources
    if "embed_tokens.weight" not in sources:
        raise ConfigError(
            "config.json: tie_word_embeddings is true, but the checkpoint has no embed_tokens.weight to be "
            "the head; add the embedding table, or set it to false if the head is the target's own"
        )
    return {**sources, "lm_head.weight": sources["embed_tokens.weight"]}
