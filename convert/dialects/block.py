# SPDX-License-Identifier: MIT
"""Layouts of block drafters. All these layouts have `fc`, `hidden_norm`, `layers.{i}.*`, `norm`, the heads,
and a config whose `dflash_config` overrides the top level.

A layer id is the number of the target's block whose output the drafter reads. Only the key `eagle_aux_..` of
inference engines has another convention (vllm-project/vllm: v1/worker/gpu/spec_decode/eagle/eagle3_utils.py).
Checkpoints of z-lab and DeepSpec do not state the first drafting slot. The class name determines it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from ..block import CAUSAL, MARKOV, SELECTOR, SINKS, default_layers, with_markov_part
from ..config import flag, id_list, integer, nested, shown, wrong
from ..errors import ConfigError, LayerIdError, UnsupportedError
from ..gguf_checkpoint import BLOCK_FILE
from ..parallel import proposed_tokens
from ..readings import Choice, Convention, ignored_part
from ..rope import halves
from ..tensor import TensorSource, rows_of, stacked
from .base import IDS, Dialect, Seen, canonical_name
from .block_keys import GEMMA, READ, SPECULATORS, refuse_unknown
from .eagle import gemma_config, gemma_name, nested_config

MOST_LAYERS = 256
_LAGUNA = ("gating", "num_attention_heads_per_layer", "swa_attention_sink_enabled", "swa_rope_parameters")
"""Config keys that only Laguna has. Laguna's dialect reads the last key. The tensors already show the values
of the other keys.
"""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with the values of `dflash_config` merged into its top level. Raises ConfigError."""
    return {**config, **{k: v for k, v in nested(config, "dflash_config").items() if v is not None}}


def _n_layers(config: Mapping[str, Any]) -> int:
    n = integer(config, "num_hidden_layers")
    if n > MOST_LAYERS:
        raise wrong("num_hidden_layers", f"at most {MOST_LAYERS}", n)
    return n


def _slides(config: Mapping[str, Any]) -> bool:
    """Returns True if layer_types gives every layer a sliding window. If use_swa sets the window and no key
    sets causality, such layers are causal. Raises ConfigError.
    """
    kinds = config.get("layer_types")
    slides = {kind == "sliding_attention" for kind in kinds} if isinstance(kinds, list) and kinds else {False}
    if len(slides) > 1:
        raise wrong("causal", "true or false, because use_swa is set and layer_types differ", None)
    return slides.pop()


def _sample_from_anchor(config: Mapping[str, Any]) -> bool | None:
    """Returns whether the anchor's slot drafts a token, from three config keys. Returns None if all three
    keys are unset. Raises ConfigError.
    """
    keys = {"sample_from_anchor": True, "shift_label": True, "dspark_bonus_anchor": False}
    stated = {key: flag(config, key) is drafts for key, drafts in keys.items() if config.get(key) is not None}
    if len(set(stated.values())) > 1:
        raise ConfigError(
            f"config.json: {' and '.join(stated)} contradict each other; keep the value of the training"
        )
    return next(iter(stated.values()), None)


class BlockDialect(Dialect):
    is_block = True
    conventions: tuple[Convention | None, Convention | None] = ("post", None)
    anchor_first = False
    """True if slot 0 drafts a token, unless the config says otherwise."""
    keys: frozenset[str] | None = READ
    """Config keys that the converter reads; None for a config that `gguf_checkpoint` built."""

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = flat(seen.config)
        if self.keys is not None:
            refuse_unknown(config, self.keys)
        if (
            config.get("target_num_hidden_layers") is not None
        ):  # TorchSpec counts features, not layers, in num_target_layers
            config["_n_features"] = config["num_target_layers"]
            config["num_target_layers"] = config["target_num_hidden_layers"]
        if config.get("swa_window_size") is not None and config.get("sliding_window") is not None:
            config["sliding_window"] = config["swa_window_size"]
        if flag(config, "use_swa"):
            if all(config.get(key) is None for key in CAUSAL):
                config["causal"] = _slides(config)
            config |= {
                "sliding_window": integer(config, "swa_window_size"),
                "layer_types": ["sliding_attention"] * _n_layers(config),
                "use_sliding_window": True,
            }
        # Without this tensor, tie_word_embeddings is only a copy from the target's config.
        if seen.shape("embed_tokens.weight") is None:
            config["tie_word_embeddings"] = False
        config[IDS] = self.layer_ids(config)
        if config.get("output_multiplier") is not None:
            config["logit_scale"] = config["output_multiplier"]
        config["sample_from_anchor"] = _sample_from_anchor(config)
        config["anchor_first"] = flag(config, "sample_from_anchor", self.anchor_first)
        return config

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        found = ignored_part(config)
        if config.get("block_size") is None:
            why = "config.json has no block_size; it changes every draft if positions see their whole block"
            found += (Choice("block_size", ("16", "8", "7"), why, is_open=True),)
        return found

    def layer_ids(self, config: Mapping[str, Any]) -> list[int] | None:
        """Returns the layer ids as post-layer ids."""
        post, boundary = id_list(config, "target_layer_ids"), id_list(config, IDS)
        if post and boundary and boundary != tuple(k + 1 for k in post):
            raise LayerIdError(
                f"config.json: {IDS} is {list(boundary)} and target_layer_ids is {list(post)}: expected each "
                f"id in {IDS} to be larger by 1. Correct the wrong list"
            )
        if boundary:
            return [k - 1 for k in boundary]
        if post:
            return list(post)
        n_features = integer(config, "_n_features", None) or _n_layers(config)
        return default_layers(integer(config, "num_target_layers"), n_features)

    def canonical(self, name: str) -> str | None:
        canonical = canonical_name(name.removeprefix("logit_head."))
        if canonical is None:
            return None
        canonical = re.sub(r"\.self_attn\.(sinks|attention_sink_bias)(\.weight)?$", SINKS, canonical)
        # name in Model Optimizer
        canonical = re.sub(r"^markov_w([12])\.", r"markov_head.markov_w\1.", canonical)
        return canonical.replace("confidence_proj.", "confidence_head.proj.")

    def check(self, tensors: Mapping[str, TensorSource]) -> None:
        folder = next(iter(tensors.values())).path.parent
        if (folder / "mask_embedding.pt").exists():
            raise UnsupportedError(
                f"{folder / 'mask_embedding.pt'}: block drafters with a separate mask vector (MiMo) are not "
                "supported. Convert the drafter with llama.cpp's converter and --target-model-dir: eaglecpp "
                "runs that GGUF, which has the vector in its embedding table"
            )

    def adapted(
        self, sources: Mapping[str, TensorSource], config: Mapping[str, Any]
    ) -> dict[str, TensorSource]:
        sources = with_markov_part(sources, integer(config, "hidden_size"))
        if flag(config, "rope_is_neox_style", flag(config, "is_neox_style", True)):
            return sources
        size, turned = integer(config, "head_dim"), ("q_proj", "k_proj", "q_norm", "k_norm")
        return {
            name: halves(source, size) if any(f".{x}." in name for x in turned) else source
            for name, source in sources.items()
        }


class ZLab(BlockDialect):
    """z-lab/dflash: `DFlashDraftModel`, and `DFlash2DraftModel` with convolutions and a selector. SpecForge,
    Model Optimizer and NVIDIA's Nemotron drafters also use `DFlashDraftModel`. The drafter uses the target's
    embeddings and head.
    """

    name = "z-lab"
    title = "z-lab DFlash"
    classes = (
        "DFlashDraftModel", "DFlash2DraftModel", "Qwen3DFlashDraftModel", "Qwen3DFlash2DraftModel",
        "QwenDFlashDraftModel",
    )  # fmt: skip
    """Class names of z-lab. The last three names are from NeMo Automodel and AngelSlim, for the same
    arithmetic.
    """

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = super().flatten(seen)
        is_open = seen.shape(MARKOV) is not None or config.get("projector_type") == "dspark"
        if is_open and config.get("sample_from_anchor") is None:
            raise ConfigError(
                "config.json: sample_from_anchor: expected true or false, found no such key. "
                "Add the value that the drafter was trained with: whether the anchor's position drafts"
            )
        return config


class BlockFile(BlockDialect):
    """A block drafter's GGUF, which `gguf_checkpoint` reads as a checkpoint. Files of llama.cpp's converter
    do not state whether the anchor's slot drafts a token. llama.cpp's `draft-dflash` never drafts from the
    anchor's slot, although DeepSpec's DFlash was trained to draft from it.
    """

    name = "block-gguf"
    title = "block drafter's GGUF"
    classes = (BLOCK_FILE,)
    keys = None
    reads_files = True

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        is_open = config.get("sample_from_anchor") is None and seen.shape(SELECTOR) is None
        why = "the file leaves open whether the anchor's position drafts (DeepSpec: yes, z-lab: no)"
        slots = (Choice("slots", ("in-place", "anchor-first"), why),) if is_open else ()
        return (*super().choices(seen, config), *slots)


class Muse(BlockDialect):
    """Muse-Glimmer's assistant, a DFlash drafter. Rows of its sliding layers attend to the whole block
    (ggml-org/llama.cpp: conversion/muse_glimmer.py).
    """

    name = "muse"
    title = "Muse-Glimmer assistant"
    classes = ("MuseGlimmerAssistantModel",)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = super().flatten(seen)
        return {**config, "is_causal": flag(config, "is_causal", flag(config, "causal"))}

    def canonical(self, name: str) -> str | None:
        name = name.replace("encoder.output_norm_enc.", "hidden_norm.").replace("encoder.fc.", "fc.")
        return super().canonical(name)


class Laguna(BlockDialect):
    """poolside's Laguna: attention with a softplus gate per head, a norm of each feature, and queries, keys
    and values in one matrix (vllm-project/vllm: model_executor/models/laguna_dflash.py). Either all layers
    have a sliding window, or no layer has. Each of these two kinds can have its own rope key in the config.
    """

    name = "laguna"
    title = "poolside Laguna DFlash"
    classes = ("DFlashLagunaForCausalLM", "LagunaDFlashDraftModel")
    """The second name is from a trainer built on SpecForge."""

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = {key: value for key, value in seen.config.items() if key not in _LAGUNA}
        kinds, rope = config.get("layer_types"), nested(config, "rope_parameters")
        kind = str(kinds[0]) if isinstance(kinds, list) and len(set(map(str, kinds))) == 1 else ""
        sliding = nested(seen.config, "swa_rope_parameters") if kind == "sliding_attention" else {}
        config["rope_parameters"] = sliding or nested(rope, kind) or rope or None
        return super().flatten(Seen(config, seen.shapes))

    def adapted(
        self, sources: Mapping[str, TensorSource], config: Mapping[str, Any]
    ) -> dict[str, TensorSource]:
        heads = [integer(config, f"num_{kind}_heads") for kind in ("attention", "key_value", "key_value")]
        ends = list(itertools.accumulate((n * integer(config, "head_dim") for n in heads), initial=0))
        found = dict(sources)
        for name, source in sources.items():
            if name.endswith(".qkv_proj.weight") and source.n_rows == ends[-1]:
                del found[name]
                for x, span in zip("qkv", itertools.pairwise(ends), strict=True):
                    found[name.replace("qkv_proj", f"{x}_proj")] = rows_of(source, *span)
        norms = [f"aux_hidden_norms.{a}.weight" for a in range(len(config[IDS]))]
        if found.keys() >= set(norms) and len({found[name].shape for name in norms}) == 1:
            found["aux_norm.weight"] = stacked([found.pop(name) for name in norms])
        return super().adapted(found, config)


class DeepSpecBlock(BlockDialect):
    """DeepSpec's DSpark and its descendants: block drafters that draft from the first slot.

    DeepSpec's "DFlash" is the same class with `markov_rank` 0, and drafts from the same slots
    (deepseek-ai/DeepSpec: deepspec/modeling/dspark/qwen3/modeling.py, config/dflash). SpecForge nests the
    keys of the Markov head in `dflash_config`, trains on the same labels, and formerly stored the heads under
    `logit_head.` (sgl-project/SpecForge: specforge/modeling/draft/dspark.py). LiquidAI's drafters rotate
    neighbouring pairs (RoPE). Ling's class is DeepSpec's class under another name (ggml-org/llama.cpp:
    conversion/qwen.py).
    """

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
    """LiquidAI's drafters, `Lfm2DSparkDraftModel` (sgl-project/sglang#30776)."""

    name = "liquid"
    title = "LiquidAI DSpark"
    classes = ("Lfm2DSparkDraftModel",)
    anchor_first = True


class SpeculatorsBlock(BlockDialect):
    """Block drafters of vllm-project/speculators: a nested layer config, boundary ids, and both kinds of
    slots (speculators/models/dflash, dspark and dflash2: config.py). If `sliding_window_non_causal` is set,
    which is DFlash2's default, rows of layers with a sliding window attend to their whole block. DSpark
    before 13 July 2026 had no key `sample_from_anchor` and left the anchor's slot unused. The number of
    tokens that a block drafts identifies the convention.
    """

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
            config["sample_from_anchor"] = _by_proposed_tokens(config)
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
            "config.json has no sample_from_anchor, and speculative_tokens leaves open whether the anchor's "
            "position drafts: it does in later releases of speculators' DSpark, but not in the first"
        )
        return (*found, Choice("slots", ("in-place", "anchor-first"), why))


def _by_proposed_tokens(config: Mapping[str, Any]) -> bool | None:
    """Returns whether the anchor's slot drafts a token, derived from the number of proposed tokens in the
    config. Returns None if the config does not state this number.

    If the anchor's slot drafts, a block of B rows drafts B tokens, otherwise B - 1 tokens. Raises ConfigError
    if the config contradicts itself.
    """
    stated = None if config.get("sample_from_anchor") is None else flag(config, "sample_from_anchor")
    size = integer(config, "block_size", None)
    tokens = next(iter(proposed_tokens(config)), None)
    if size is None or tokens not in (size - 1, size):
        return stated
    if stated not in (None, tokens == size):
        raise ConfigError(
            f"config.json: sample_from_anchor is {stated} and block_size is {size}, so speculative_tokens in "
            f"speculators_config.proposal_methods must be {size if stated else size - 1}, found {tokens}. "
            "Correct the value that the drafter was not trained with"
        )
    return tokens == size
