# SPDX-License-Identifier: MIT
"""Checkpoints written for vLLM's own classes (`Eagle3LlamaForCausalLM`, and with latent attention
`Eagle3DeepseekV2ForCausalLM`), among them AngelSlim's. Several names are one class there
(vllm-project/vllm: model_executor/models/registry.py).

`midlayer.*` or `layers.0.*`, optionally after `model.`. The class says nothing about who trained it, so
explicit ids stay ambiguous unless they explain themselves. AngelSlim's trainer (train/models/draft/
llama_eagle3.py, still so in 0.5.0) builds unscaled and linear rope without the config's theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import TensorError
from ..parallel import MASK_FEATURE
from ..readings import Choice, ignored_theta
from .base import Dialect, Seen

PARALLEL_CLASSES = frozenset({"PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM"})
_QWEN3_CLASSES = frozenset({"Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM"})
_LATENT_CLASSES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")


class VllmNative(Dialect):
    name = "vllm"
    title = "vLLM (Eagle3LlamaForCausalLM, Eagle3DeepseekV2ForCausalLM)"
    classes = (
        *PARALLEL_CLASSES, *_QWEN3_CLASSES, *_LATENT_CLASSES, "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM",
    )  # fmt: skip
    """What vLLM runs with its llama and qwen3 code; the latter has norms of q and k."""

    def matches(self, seen: Seen) -> bool:
        if seen.is_latent_class:  # TorchSpec and Model Optimizer use vLLM's name, and say more
            return not seen.eagle_config and "_torchspec_version" not in seen.config
        if seen.architecture == "LlamaForCausalLMEagle3" and seen.shape(MASK_FEATURE) is not None:
            return not seen.eagle_config and not seen.has(
                "midlayer."
            )  # as vLLM's P-EAGLE drafters are published
        return seen.architecture in self.classes

    def flatten(self, seen: Seen) -> dict[str, Any]:
        if seen.architecture in _QWEN3_CLASSES and seen.shape("layers.0.self_attn.q_norm.weight") is None:
            raise TensorError(
                f"{seen.architecture}: expected q_norm and k_norm in layer 0, which this class has, found "
                'neither; set architectures to ["Eagle3LlamaForCausalLM"] if it was trained without'
            )
        return dict(seen.config)

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        if seen.architecture != "Eagle3LlamaForCausalLM" or seen.shape(MASK_FEATURE) is not None:
            return ()
        return ignored_theta(config, "AngelSlim, which writes this class, trains", ("default", "linear"))
