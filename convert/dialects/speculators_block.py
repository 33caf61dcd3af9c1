# SPDX-License-Identifier: MIT
"""vllm-project/speculators' block drafters: the layer's config nested, boundary ids, and both kinds of slots
(speculators/models/dflash, dspark and dflash2: config.py). Rows of layers that slide see their whole block
where `sliding_window_non_causal` says so, which DFlash2's class does by default. DSpark before 13 July 2026
had no `sample_from_anchor` and left the anchor's slot unused; how many tokens a block drafts tells the two
conventions apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import flag, id_list, integer
from ..errors import ConfigError
from ..parallel import proposed_tokens
from ..readings import Choice
from .base import Seen
from .block import BlockDialect
from .block_keys import READ, SPECULATORS
from .speculators import nested_config


class SpeculatorsBlock(BlockDialect):
    name = "speculators-block"
    title = "speculators (block drafters)"
    kinds = ("dflash", "dspark", "dflash2")
    conventions = ("boundary", None)
    classes = ("DFlashSpeculator", "DSparkSpeculator", "DFlash2Speculator")
    keys = READ | SPECULATORS

    def matches(self, seen: Seen) -> bool:
        return seen.config.get("speculators_model_type") in self.kinds

    def flatten(self, seen: Seen) -> dict[str, Any]:
        kind = seen.config["speculators_model_type"]
        nested = Seen(nested_config(seen.config), seen.shapes)
        config = super().flatten(nested)
        if kind == "dspark":
            config["sample_from_anchor"] = _sample_from_anchor(config)
            config["anchor_first"] = flag(config, "sample_from_anchor")
        config["sliding_window_non_causal"] = flag(config, "sliding_window_non_causal", kind == "dflash2")
        return config

    def layer_ids(self, config: Mapping[str, Any]) -> list[int] | None:
        ids = id_list(config, "aux_hidden_state_layer_ids")
        return list(ids) if ids else None

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        found = super().choices(seen, config)
        if seen.config["speculators_model_type"] != "dspark" or config["sample_from_anchor"] is not None:
            return found
        why = (
            "config.json has no sample_from_anchor, and its speculative_tokens do not say whether the "
            "anchor's slot drafts: the first release of speculators' DSpark left it unused, later ones do not"
        )
        return (*found, Choice("slots", ("in-place", "anchor-first"), why))


def _sample_from_anchor(config: Mapping[str, Any]) -> bool | None:
    """Returns whether the anchor's slot drafts, None if the config does not say.

    A block of B rows drafts B tokens if it does and B - 1 if it does not. Raises ConfigError if the config
    contradicts itself.
    """
    stated = None if config.get("sample_from_anchor") is None else flag(config, "sample_from_anchor")
    size = integer(config, "block_size", None)
    tokens = next(iter(proposed_tokens(config)), None)
    if size is None or tokens not in (size - 1, size):
        return stated
    if stated not in (None, tokens == size):
        raise ConfigError(
            f"config.json: sample_from_anchor is {stated}, but speculators_config.proposal_methods has "
            f"speculative_tokens {tokens} for block_size {size}: expected {size if stated else size - 1}. "
            "Correct the value that the drafter was not trained with"
        )
    return tokens == size
