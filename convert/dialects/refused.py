# SPDX-License-Identifier: MIT
"""Checkpoints that are recognised but cannot be converted, each with its reason.

A specific reason helps the user more than a list of unknown tensors. This module also rejects values in
ModelOpt's `eagle_config` that change EAGLE-3's arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from ..config import shown
from ..errors import UnsupportedError
from ..gguf_checkpoint import BLOCK_FILE
from ..parallel import MASK_FEATURE, MASK_TOKEN_KEYS
from .base import Seen
from .block import Laguna, SpeculatorsBlock, flat
from .block_keys import DEEPSEEK, OTHER_ARITHMETIC
from .eagle import PARALLEL_CLASSES, Eagle1

_MTP = (
    "this is a multi-token prediction head (MTP), not an EAGLE checkpoint. Convert its whole model with "
    "llama.cpp's converter, and run that GGUF with --draft mtp"
)
_TENSORS = {
    r"^(enorm|hnorm)\.": "EAGLE-1 drafters exported by Megatron are not supported",
    r"\.(eh_proj|enorm|hnorm)\.": _MTP,
    r"^(model\.)?midlayer\.\d+\.": "Megatron exports of Model Optimizer with several layers "
    "(midlayer.{i}.*) are not supported, because other engines do not run their later layers. Export the "
    "drafter through Model Optimizer's Hugging Face path",
    r"\.experts\.|mlp\.gate\.weight$": "drafters with mixture-of-experts layers are not supported",
    r"(weight_scale(_\d|_inv)?|weight_zero_point|input_scale|qweight|qzeros|weight_packed)$": "quantised "
    "checkpoints are not supported; convert the original bf16 or fp16 checkpoint",
}
_BLOCK_TENSORS = {
    r"^(model\.)?mtp\.\d+\.main_proj\.": DEEPSEEK,
    r"prefix_gru\.": "Domino's recurrent head",
}
_LAGUNA_TENSORS = r"\.qkv_proj\.|\.g_proj\.|aux_hidden_norms\."
_EAGLE_CONFIG_VALUES: dict[str, Any] = {
    "use_aux_hidden_state": True,
    "use_last_layernorm": True,
    "use_input_layernorm_in_first_layer": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
"""The values of ModelOpt's `eagle_config` that stand for EAGLE-3's arithmetic. In ModelOpt's export, null
means "not set".
"""
_EAGLE_CONFIG_OTHER = {
    "eagle_aux_hidden_state_layer_ids",
    "norm_before_fc",
    "parallel_draft_heads_num_layers",
}


def refuse(seen: Seen, classes: Collection[str], block_classes: Collection[str]) -> None:
    """Raises UnsupportedError for a known kind of checkpoint that cannot be converted.

    classes: class names of all dialects, including the dialects of block drafters
    """
    kind = seen.config.get("speculators_model_type")
    named = re.search(r"(?i)dflash|dspark|domino", seen.architecture) or seen.architecture in block_classes
    is_block = any(seen.config.get(key) for key in ("dflash_config", "dspark_block_size"))
    of_kind = _block(seen) if named or is_block or kind in SpeculatorsBlock.kinds else _parallel(seen)
    for reasons in (of_kind, _tensors(seen), _class(seen, classes), _eagle_config(seen)):
        for reason in reasons:
            raise UnsupportedError(reason)


def _tensors(seen: Seen) -> Iterator[str]:
    for pattern, reason in _TENSORS.items():
        hit = next((name for name in seen.shapes if re.search(pattern, name)), None)
        if hit is not None:
            yield f"{reason} (tensor {hit})"


def _block(seen: Seen) -> Iterator[str]:
    """Yields the reasons why a block drafter is rejected: unsupported arithmetic, or a checkpoint of another
    kind with a block drafter's name.
    """
    config = flat(seen.config)
    head, projector = config.get("markov_head_type"), config.get("projector_type")
    found = [
        reason
        for pattern, reason in _BLOCK_TENSORS.items()
        if any(re.search(pattern, name) for name in seen.shapes)
    ]
    if seen.architecture not in (*Laguna.classes, BLOCK_FILE) and any(
        re.search(_LAGUNA_TENSORS, name) for name in seen.shapes
    ):
        found.append(f"fused or gated attention, which only {Laguna.classes[0]} is known to have")
    found += [reason for key, reason in OTHER_ARITHMETIC.items() if config.get(key)]
    if "Domino" in seen.architecture or projector == "domino":
        found.append("Domino's recurrent head")
    elif projector not in (None, "dflash", "dspark"):
        found.append(f"projector_type {shown(projector)}")
    if seen.architecture.endswith("DFlash2DraftModel") and not seen.has("candidate_selector."):
        found.append("a class of DFlash2 without its selector")
    if str(head or "vanilla").lower() != "vanilla" and config.get("markov_rank", 1):
        found.append(f"a Markov head of type {shown(head)}")
    if config.get("dspark_fixup_head_type") not in (None, "markov"):
        found.append(f"a head of type {shown(config['dspark_fixup_head_type'])}")
    if found:
        yield f"block drafters with {' and '.join(dict.fromkeys(found))} are not supported"
    if seen.shape("hidden_norm.weight") is None and not seen.has("encoder.output_norm_enc."):
        yield (
            f"{seen.architecture}: expected a block drafter's tensors fc.weight and hidden_norm.weight, "
            "found no hidden_norm.weight"
        )


def _parallel(seen: Seen) -> Iterator[str]:
    """Yields the reasons why a parallel drafter is rejected. P-EAGLE is rejected if its mask feature is
    missing. PARD is rejected because it is trained without a mask feature.
    """
    if seen.config.get("speculators_model_type") == "xpress":
        yield "XPress drafters of speculators are not supported"
    names = {seen.architecture, str(seen.config.get("speculators_model_type"))}
    named = names & {"PEagleDraftModel", "PEagleSpeculator", "peagle", *PARALLEL_CLASSES}
    is_parallel = any(
        seen.config.get(k) not in (None, False) for k in ("parallel_drafting", *MASK_TOKEN_KEYS)
    )
    if (named or is_parallel) and seen.shape(MASK_FEATURE) is None:
        yield (f"parallel drafters without P-EAGLE's tensor {MASK_FEATURE} are not supported")


def _class(seen: Seen, classes: Collection[str]) -> Iterator[str]:
    name, kind = seen.architecture, str(seen.config.get("speculators_model_type") or "")
    if "mtp" in f"{name} {kind}".lower() or "mtp_config" in seen.config:
        yield _MTP
    if kind == "eagle" or name == "EagleSpeculator":
        yield (
            "EAGLE-1 drafters in the layout of speculators (EagleSpeculator) are not supported, because "
            "they may have more norms. Convert the checkpoint that this one was made from"
        )
    if seen.is_latent_class and not seen.has_latent_tensors:
        yield (
            f"architecture {shown(name)} has latent attention, but the checkpoint has no tensor "
            "kv_a_proj_with_mqa"
        )
    if name not in classes and not (name in Eagle1.also and Eagle1().matches(seen)):
        yield (
            f"architecture {shown(name)}: expected one of {', '.join(sorted(filter(None, classes)))}; "
            "other architectures compute their drafts differently"
        )


def _eagle_config(seen: Seen) -> Iterator[str]:
    for key, value in seen.eagle_config.items():
        if value is None or key in _EAGLE_CONFIG_OTHER:
            continue
        if key not in _EAGLE_CONFIG_VALUES:
            yield f"config.json: eagle_config.{key}: unknown key, which may change the computation"
        elif value != _EAGLE_CONFIG_VALUES[key]:
            expected = _EAGLE_CONFIG_VALUES[key]
            yield f"config.json: eagle_config.{key}: expected {expected} for EAGLE-3, found {shown(value)}"
