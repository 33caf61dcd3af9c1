# SPDX-License-Identifier: MIT
"""Checkpoints written for vLLM's own classes (`Eagle3LlamaForCausalLM`, and with latent attention
`Eagle3DeepseekV2ForCausalLM`), among them AngelSlim's.

`midlayer.*` or `layers.0.*`, optionally after `model.`. The class says nothing about who trained it, so
explicit ids stay ambiguous unless they explain themselves. AngelSlim's trainer (train/models/draft/
llama_eagle3.py, still so in 0.5.0) builds unscaled and linear rope without the config's theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..parallel import MASK_FEATURE
from ..readings import Choice, ignored_theta
from .base import Dialect, Seen

__all__ = ["VllmNative"]


class VllmNative(Dialect):
    name = "vllm"
    title = "vLLM (Eagle3LlamaForCausalLM, Eagle3DeepseekV2ForCausalLM)"

    def matches(self, seen: Seen) -> bool:
        if seen.is_latent_class:  # TorchSpec and Model Optimizer use vLLM's name, and say more
            return not seen.eagle_config and "_torchspec_version" not in seen.config
        if seen.architecture == "LlamaForCausalLMEagle3" and seen.shape(MASK_FEATURE) is not None:
            return not seen.eagle_config and not seen.has(
                "midlayer."
            )  # as vLLM's P-EAGLE drafters are published
        return seen.architecture == "Eagle3LlamaForCausalLM"

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        if seen.is_latent_class or seen.shape(MASK_FEATURE) is not None:
            return ()
        return ignored_theta(config, "AngelSlim, which writes this class, trains", ("default", "linear"))
