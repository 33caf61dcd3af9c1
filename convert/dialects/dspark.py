# SPDX-License-Identifier: MIT
"""Block drafters whose first slot drafts: DeepSpec's DSpark and what follows it.

DeepSpec's "DFlash" is the same class with `markov_rank` 0, slots included (deepseek-ai/DeepSpec:
deepspec/modeling/dspark/qwen3/modeling.py, config/dflash). SpecForge nests the head's keys in
`dflash_config`, trains on the same labels, and once kept the heads under `logit_head.`
(sgl-project/SpecForge: specforge/modeling/draft/dspark.py). LiquidAI's rotate neighbouring pairs. Ling's
class is DeepSpec's by another name (ggml-org/llama.cpp: conversion/qwen.py).
"""

from __future__ import annotations

from typing import Any

from ..config import shown
from ..errors import UnsupportedError
from .base import Seen
from .block import BlockDialect
from .block_keys import GEMMA, READ
from .deepspec_gemma import gemma_config, gemma_name


class DeepSpecBlock(BlockDialect):
    name = "deepspec-block"
    title = "DeepSpec DSpark"
    classes: tuple[str, ...] = ("Qwen3DSparkModel", "LingDSparkModel")
    anchor_first = True


class DeepSpecGemmaBlock(DeepSpecBlock):
    title = "DeepSpec DSpark (Gemma 4)"
    classes = ("Gemma4DSparkModel",)
    keys = READ | GEMMA
    is_gemma = True
    activations = ("gelu_pytorch_tanh",)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = super().flatten(seen)
        kinds = config.get("layer_types")
        if kinds is not None and (not isinstance(kinds, list) or set(map(str, kinds)) - {"full_attention"}):
            raise UnsupportedError(
                f"config.json: layer_types: expected full_attention for every layer, found {shown(kinds)}; "
                "Gemma 4's sliding layers have heads of another size, which is not supported"
            )
        return gemma_config(config) | {"layer_types": None, "sliding_window": None}

    def canonical(self, name: str) -> str | None:
        found = super().canonical(name)
        return None if found is None else gemma_name(found)


class SpecForgeBlock(BlockDialect):
    name = "specforge-block"
    title = "SpecForge DSpark"
    classes = ("DSparkDraftModel",)
    anchor_first = True


class Liquid(BlockDialect):
    """LiquidAI's, `Lfm2DSparkDraftModel` (sgl-project/sglang#30776)."""

    name = "liquid"
    title = "LiquidAI DSpark"
    classes = ("Lfm2DSparkDraftModel",)
    anchor_first = True
