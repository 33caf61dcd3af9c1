# SPDX-License-Identifier: MIT
"""Checkpoints that are recognised and not convertible, each with its reason.

Better a refusal by name than a list of unknown tensors. Also the values of ModelOpt's `eagle_config` that
change the arithmetic: only the ones that mean EAGLE-3 pass.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import UnsupportedError
from .base import Seen

__all__ = ["refuse"]

KNOWN_ARCHITECTURES = frozenset(
    {
        "",
        "LlamaForCausalLM",
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
        "Eagle3DeepseekV2ForCausalLM",
        "Eagle3DeepseekV3ForCausalLM",
        "DeepseekV3ForCausalLMEagle3",
    }
)

# The only values under which the arithmetic is EAGLE-3's. null means "not set" in ModelOpt's export.
_EAGLE_CONFIG_VALUES: dict[str, Any] = {
    "use_aux_hidden_state": True,
    "use_last_layernorm": True,
    "use_input_layernorm_in_first_layer": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
_EAGLE_CONFIG_OTHER = {
    "eagle_aux_hidden_state_layer_ids",
    "norm_before_fc",
    "parallel_draft_heads_num_layers",
}


def refuse(seen: Seen) -> None:
    """Raise UnsupportedError when the checkpoint is one we know and cannot convert."""
    for check in (
        _parallel,
        _half_latent,
        _megatron,
        _mixture,
        _quantised,
        _eagle_1,
        _architecture,
        _eagle_config,
    ):
        reason = check(seen)
        if reason:
            raise UnsupportedError(reason)


def _parallel(seen: Seen) -> str:
    flags = ("parallel_drafting", "mask_token_id", "ptd_token_id", "pard_token")
    names = {seen.architecture, str(seen.config.get("speculators_model_type"))}
    hit = names & {"PEagleDraftModel", "PEagleSpeculator", "peagle"} or seen.has("mask_hidden")
    if not hit and not any(seen.config.get(key) not in (None, False) for key in flags):
        return ""
    return "P-EAGLE checkpoint: not supported, it drafts all tokens at once from a mask feature"


def _half_latent(seen: Seen) -> str:
    """The class name and the tensors of latent attention come together."""
    if not seen.is_latent_class or seen.has_latent_tensors:
        return ""
    return (
        f"architecture {seen.architecture!r} has latent attention, but the checkpoint has no tensor "
        "kv_a_proj_with_mqa"
    )


def _megatron(seen: Seen) -> str:
    if seen.architecture == "LlamaForCausalLMEagle":
        return "Megatron export of an EAGLE-1 style drafter (LlamaForCausalLMEagle): not supported"
    deep = any(re.match(r"(model\.)?midlayer\.\d+\.", name) for name in seen.shapes)
    if not deep and seen.architecture != "LlamaForCausalLMEagle3Deep":
        return ""
    return (
        "Model Optimizer Megatron export with several layers (midlayer.{i}.*): not supported, its later "
        "layers are "
        "not the decoder layers other engines run; export through Model Optimizer's Hugging Face path"
    )


def _mixture(seen: Seen) -> str:
    hit = next((name for name in seen.shapes if ".experts." in name or name.endswith("mlp.gate.weight")), "")
    return f"drafter with mixture-of-experts layers (tensor {hit}): not supported" if hit else ""


def _quantised(seen: Seen) -> str:
    hit = next(
        (
            n
            for n in seen.shapes
            if re.search(r"(weight_scale(_\d|_inv)?|input_scale|qweight|weight_packed)$", n)
        ),
        "",
    )
    return (
        f"quantised checkpoint (tensor {hit}): not supported, convert the original bf16 or fp16 one"
        if hit
        else ""
    )


def _eagle_1(seen: Seen) -> str:
    fc, q = seen.shape("fc.weight"), seen.shape("layers.0.self_attn.q_proj.weight")
    if fc is None or q is None or len(fc) != 2 or len(q) != 2:
        return ""
    if fc[1] != 2 * fc[0] or q[1] != fc[0]:
        return ""
    return (
        "EAGLE-1/2 checkpoint (fc takes [embedding ; feature] and attention takes the hidden size): not "
        "supported, "
        "only EAGLE-3 and 3.1 drafters are"
    )


def _architecture(seen: Seen) -> str:
    if seen.architecture in KNOWN_ARCHITECTURES:
        return ""
    return (
        f"architecture {seen.architecture!r}: expected one of "
        f"{', '.join(sorted(KNOWN_ARCHITECTURES - {''}))}; drafters of other architectures run other "
        "arithmetic"
    )


def _eagle_config(seen: Seen) -> str:
    for key, value in seen.eagle_config.items():
        if value is None or key in _EAGLE_CONFIG_OTHER:
            continue
        if key not in _EAGLE_CONFIG_VALUES:
            return f"config.json: eagle_config.{key}: unknown key; it may change the arithmetic"
        if value != _EAGLE_CONFIG_VALUES[key]:
            expected = _EAGLE_CONFIG_VALUES[key]
            return f"config.json: eagle_config.{key}: expected {expected}, found {value!r}: not EAGLE-3"
    return ""
