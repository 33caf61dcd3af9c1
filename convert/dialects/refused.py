# SPDX-License-Identifier: MIT
"""Checkpoints that are recognised but cannot be converted, each with its reason.

A refusal by name is better than a list of unknown tensors. Also the values of ModelOpt's `eagle_config` that
change the arithmetic: only the ones that mean EAGLE-3 pass.
"""

from __future__ import annotations

import re
from typing import Any

from ..config import shown
from ..errors import UnsupportedError
from ..parallel import MASK_FEATURE, MASK_TOKEN_KEYS
from .base import Seen
from .block import BlockFile, Muse, ZLab, flat
from .dspark import DeepSpecBlock, DeepSpecGemmaBlock, Liquid, SpecForgeBlock
from .eagle_1 import EAGLE_1_ARCHITECTURES, Eagle1
from .mistral import ARCHITECTURE
from .speculators_block import SpeculatorsBlock
from .vllm_native import PARALLEL_CLASSES, VLLM_CLASSES

_BLOCK_DIALECTS = (
    ZLab, BlockFile, Muse, DeepSpecBlock, DeepSpecGemmaBlock, SpecForgeBlock, Liquid, SpeculatorsBlock
)  # fmt: skip
BLOCK_CLASSES = frozenset(name for dialect in _BLOCK_DIALECTS for name in dialect.classes)
KNOWN_ARCHITECTURES = VLLM_CLASSES | frozenset(
    {
        "",
        "LlamaForCausalLM",
        "LlamaForCausalLMEagle3",
        "Eagle3Speculator",
        "Eagle3DraftModel",
        "PEagleDraftModel",
        "PEagleSpeculator",
        "Qwen3Eagle3Model",
        "Gemma4Eagle3Model",
        "LlamaEagle3DraftModel",
        ARCHITECTURE,
        *BLOCK_CLASSES,
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
    checks = (
        _other_method, _block, _parallel, _half_latent, _megatron, _mixture, _quantised, _nested_eagle_1,
        _architecture, _eagle_config,
    )  # fmt: skip
    for check in checks:
        reason = check(seen)
        if reason:
            raise UnsupportedError(reason)


def _other_method(seen: Seen) -> str:
    """Heads for further tokens."""
    kinds = {seen.architecture, str(seen.config.get("speculators_model_type") or "")}
    tensors = any(re.search(r"(^|\.)(eh_proj|enorm|hnorm)\.", name) for name in seen.shapes)
    own = any("mtp" in kind.lower() for kind in kinds) or "mtp_config" in seen.config
    if not (own or tensors) or _is_megatron(seen):
        return ""
    return (
        "multi-token prediction head (MTP): not an EAGLE checkpoint; llama.cpp converts it with its model, "
        "and that GGUF drafts by itself (--draft mtp)"
    )


def _is_block(seen: Seen) -> bool:
    named = re.search(r"(?i)dflash|dspark|domino", seen.architecture) or seen.architecture in BLOCK_CLASSES
    kind = seen.config.get("speculators_model_type") in SpeculatorsBlock.kinds
    told = any(seen.config.get(key) for key in ("dflash_config", "dspark_block_size"))
    return bool(named or kind or told)


def _block(seen: Seen) -> str:
    """Block drafters with arithmetic of their own, and those that are none."""
    if not _is_block(seen):
        return ""
    config, names = flat(seen.config), list(seen.shapes)

    def has(pattern: str) -> bool:
        return any(re.search(pattern, name) for name in names)

    head = config.get("markov_head_type")
    reasons = {
        "DeepSeek-V4's blocks, which have experts and several residual streams": "dspark_block_size" in config
        or has(r"^(model\.)?mtp\.\d+\.main_proj\."),
        "Domino's recurrent head": "Domino" in seen.architecture
        or config.get("projector_type") == "domino"
        or has(r"prefix_gru\."),
        f"projector_type {shown(config.get('projector_type'))}": config.get("projector_type")
        not in (None, "dflash", "dspark", "domino"),
        "a class of DFlash2 without its selector": seen.architecture == "DFlash2DraftModel"
        and not has(r"candidate_selector\."),
        "JetSpec's shifted slots and causal head": any(config.get(k) for k in ("causal_head", "draft_shift")),
        "attention sinks": has(r"\.(sinks|attention_sink_bias)$")
        or config.get("attention_sink_bias") not in (None, False),
        "attention_value_scale": config.get("attention_value_scale") not in (None, 1, 1.0),
        "fused or gated attention (Laguna)": has(r"\.qkv_proj\.|\.g_proj\.|aux_hidden_norms\."),
        f"a Markov head of type {shown(head)}": head not in (None, "vanilla")
        and bool(config.get("markov_rank", 1)),
        "log_snr_conditioning": bool(config.get("log_snr_conditioning")),
    }
    found = [what for what, holds in reasons.items() if holds]
    if found:
        return f"block drafter with {' and '.join(found)}: not supported"
    if seen.shape("hidden_norm.weight") is None and not seen.has("encoder.output_norm_enc."):
        return (
            f"{seen.architecture}: expected a block drafter's tensors fc.weight and hidden_norm.weight, "
            "found no hidden_norm.weight"
        )
    return ""


def _parallel(seen: Seen) -> str:
    """P-EAGLE without its mask feature, and drafters that are trained to do without one (PARD)."""
    if seen.shape(MASK_FEATURE) is not None or _is_block(seen):
        return ""
    names = {seen.architecture, str(seen.config.get("speculators_model_type"))}
    hit = names & {"PEagleDraftModel", "PEagleSpeculator", "peagle", *PARALLEL_CLASSES}
    if not hit and not any(
        seen.config.get(key) not in (None, False) for key in ("parallel_drafting", *MASK_TOKEN_KEYS)
    ):
        return ""
    return (
        f"parallel drafter without the tensor {MASK_FEATURE}: expected P-EAGLE's mask feature; drafters that "
        "were trained without one are not supported"
    )


def _half_latent(seen: Seen) -> str:
    """The class name and the tensors of latent attention come together."""
    if not seen.is_latent_class or seen.has_latent_tensors:
        return ""
    return (
        f"architecture {shown(seen.architecture)} has latent attention, but the checkpoint has no tensor "
        "kv_a_proj_with_mqa"
    )


def _megatron(seen: Seen) -> str:
    if _is_megatron(seen):
        return (
            "Megatron export of an EAGLE-1 style drafter (LlamaForCausalLMEagle with enorm and hnorm): "
            "not supported"
        )
    deep = any(re.match(r"(model\.)?midlayer\.\d+\.", name) for name in seen.shapes)
    if not deep and seen.architecture != "LlamaForCausalLMEagle3Deep":
        return ""
    return (
        "Model Optimizer Megatron export with several layers (midlayer.{i}.*): not supported, its later "
        "layers are not the decoder layers other engines run; export through Model Optimizer's Hugging Face "
        "path"
    )


def _is_megatron(seen: Seen) -> bool:
    """NVIDIA/Model-Optimizer's Megatron export norms embedding and feature before EAGLE-1's fc."""
    named = seen.architecture == "LlamaForCausalLMEagle"
    return named and any(name.split(".")[0] in ("enorm", "hnorm") for name in seen.shapes)


def _mixture(seen: Seen) -> str:
    hit = next((name for name in seen.shapes if ".experts." in name or name.endswith("mlp.gate.weight")), "")
    return f"drafter with mixture-of-experts layers (tensor {hit}): not supported" if hit else ""


def _quantised(seen: Seen) -> str:
    hit = next(
        (
            n
            for n in seen.shapes
            if re.search(
                r"(weight_scale(_\d|_inv)?|weight_zero_point|input_scale|qweight|qzeros|weight_packed)$", n
            )
        ),
        "",
    )
    return (
        f"quantised checkpoint (tensor {hit}): in a form that is not supported (fp8, int8 and packed int4 "
        "of compressed-tensors and AWQ are, if quantization_config says so); convert the original bf16 or "
        "fp16 one"
        if hit
        else ""
    )


def _nested_eagle_1(seen: Seen) -> str:
    if seen.architecture != "EagleSpeculator" and seen.config.get("speculators_model_type") != "eagle":
        return ""
    return (
        "EAGLE-1 drafter in the layout of speculators (EagleSpeculator): not supported, it may have norms "
        "that EAGLE-1 does not have; convert the checkpoint it was made from"
    )


def _architecture(seen: Seen) -> str:
    if seen.architecture in KNOWN_ARCHITECTURES:
        return ""
    if seen.architecture in EAGLE_1_ARCHITECTURES and Eagle1().matches(seen):
        return ""
    return (
        f"architecture {shown(seen.architecture)}: expected one of "
        f"{', '.join(sorted(KNOWN_ARCHITECTURES - {''}))}; drafters of other architectures use other "
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
            return f"config.json: eagle_config.{key}: expected {expected}, found {shown(value)}: not EAGLE-3"
    return ""
