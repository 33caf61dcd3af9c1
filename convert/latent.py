# SPDX-License-Identifier: MIT
"""Multi-head latent attention: parses a flat draft config into a `LatentSpec`.

Supports the arithmetic of the class `Eagle3DeepseekV2ForCausalLM`, which is the same in TorchSpec
(models/draft/deepseek_eagle.py), vLLM (model_executor/models/deepseek_eagle3.py) and SGLang
(kimi_k25_eagle3.py). Config keys for any other arithmetic are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .config import flag, integer, shown, wrong
from .errors import UnsupportedError
from .rope import score_multiplier
from .spec import LatentSpec


def has_latent(names: Iterable[str]) -> bool:
    """Returns True if one of the canonical tensor names belongs to multi-head latent attention."""
    return any(".self_attn.kv_a_" in name or ".self_attn.kv_b_" in name for name in names)


def parse_latent(config: Mapping[str, Any]) -> tuple[LatentSpec, str]:
    """Returns the ranks, widths and scale of latent attention, and a note for the user (or ""). Raises
    ConfigError, UnsupportedError.
    """
    if flag(config, "mla_use_output_gate"):
        raise UnsupportedError(
            "config.json: mla_use_output_gate: expected false, found true. Latent attention with a gate, as "
            "in Kimi K3 itself, is not supported"
        )
    if not flag(config, "rope_interleave", True):
        raise UnsupportedError(
            "config.json: rope_interleave: expected true, found false. In drafters with latent attention, "
            "engines rotate adjacent pairs of values"
        )
    nope, rope = integer(config, "qk_nope_head_dim"), integer(config, "qk_rope_head_dim")
    if rope % 2:
        raise wrong("qk_rope_head_dim", "an even number (RoPE rotates pairs)", rope)
    latent = LatentSpec(
        q_rank=integer(config, "q_lora_rank", 0),
        kv_rank=integer(config, "kv_lora_rank"),
        nope_dim=nope,
        rope_dim=rope,
        value_dim=integer(config, "v_head_dim"),
        scale=score_multiplier(config) / math.sqrt(nope + rope),
    )
    return latent, _unrotated_note(config)


def _unrotated_note(config: Mapping[str, Any]) -> str:
    """Returns a note if the config turns rotation off, else "". TorchSpec's draft config for Kimi K3 copies
    this switch from the target, but the drafter's class rotates anyway.
    """
    if not flag(config, "mla_use_nope"):
        return ""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name not in ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"):
        raise UnsupportedError(
            "config.json: mla_use_nope is true, which is supported only for the architecture "
            f"Eagle3DeepseekV2ForCausalLM, found {shown(name)}"
        )
    return "mla_use_nope is ignored: trainer and engines rotate the heads of this class anyway"
