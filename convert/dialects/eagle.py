# SPDX-License-Identifier: MIT
"""Layouts of EAGLE drafters, a class per trainer or exporter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import flag, integer, nested, number, shown, wrong
from ..errors import ConfigError, TensorError, UnsupportedError
from ..parallel import MASK_FEATURE
from ..readings import Choice, Convention, ignored_theta
from ..rope import rope_kind
from ..tensor import TensorSource
from .base import IDS, Dialect, Seen, canonical_name

_OUTSIDE = ("lm_head.weight", "d2t", "t2d", MASK_FEATURE)


class Automodel(Dialect):
    """NVIDIA NeMo Automodel. The names of the layers' tensors and of `fc` begin with `model.`
    (`model.layers.0.*`, `model.fc.weight`), and biases are optional. The name of P-EAGLE's `mask_hidden` has
    no prefix.

    Automodel's latent attention (nemo_automodel/components/speculative/eagle/draft_deepseek.py) implements
    only the frequencies of yarn (components/models/deepseek_v3/rope_utils.py).
    """

    name = "automodel"
    title = "NeMo Automodel"
    classes = ("LlamaEagle3DraftModel",)

    def matches(self, seen: Seen) -> bool:
        body = [name for name in seen.shapes if name not in _OUTSIDE]
        return bool(body) and all(name.startswith("model.") for name in body) and seen.has("layers.0.")

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = dict(seen.config)
        if seen.has_latent_tensors and rope_kind(config) != "default":
            raise UnsupportedError(
                f"{self.title} drafters with latent attention and rope type {rope_kind(config)} are not "
                f"supported: {self.title} only changes the frequencies, but other engines also scale the "
                "attention scores"
            )
        return config


class DeepSpec(Dialect):
    """deepseek-ai/DeepSpec, class `Qwen3Eagle3Model`. It has a Qwen3 layer (with q/k norms) and drafts from
    the target's whole vocabulary.

    The layer ids are at the config's top level as `target_layer_ids`. An id is the number of the block whose
    output was captured (deepseek-ai/DeepSpec: deepspec/modeling/target_extract.py; common.py reads
    `hidden_states[id + 1]`). A drafter can have any number of layer ids; published drafters have five.
    Embeddings and head are frozen copies of the target's. The layer has EAGLE-3's arithmetic, and the state
    before the norm is the input of the next step (deepspec/modeling/eagle3/qwen3/modeling.py).
    """

    name = "deepspec"
    title = "DeepSpec"
    conventions = ("post", "post")
    classes: tuple[str, ...] = ("Qwen3Eagle3Model",)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        if seen.has("layers.1."):
            # In DeepSpec, layers after the first also read [embedding ; state]. No other project does this.
            raise UnsupportedError(
                "DeepSpec drafters with several layers are not supported, because each layer reads the "
                "embedding again"
            )
        config = dict(seen.config)
        ids = config.pop("target_layer_ids", None)
        if ids is None:
            raise UnsupportedError(
                "config.json: target_layer_ids: expected the layers that the drafter reads, found no such "
                "key; DeepSpec always writes this key"
            )
        config[IDS] = ids
        return config


_NAMES = {
    ".post_attention_layernorm.": ".post_attention_norm.",
    # `post_attention_layernorm` is the name of this norm in other drafters.
    ".pre_feedforward_layernorm.": ".post_attention_layernorm.",
    ".post_feedforward_layernorm.": ".post_feedforward_norm.",
}


class DeepSpecGemma(DeepSpec):
    """deepseek-ai/DeepSpec, class `Gemma4Eagle3Model`: EAGLE-3 around Gemma 4's own decoder layer.

    The attention is that of Gemma 4's global layers. It has wide heads, which are only partly rotated and
    often have no separate values. The norms after attention and after the feed-forward block, the scaled
    embedding and the soft cap of the logits are also Gemma's (deepseek-ai/DeepSpec:
    deepspec/modeling/eagle3/gemma4/modeling.py). DeepSpec does not build layers with experts or layers with
    embeddings of their own, so such layers are rejected.
    """

    title = "DeepSpec (Gemma 4)"
    classes = ("Gemma4Eagle3Model",)
    is_gemma = True
    activations = ("gelu_pytorch_tanh",)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        return gemma_config(super().flatten(seen)) | {"layer_types": ["full_attention"]}

    def canonical(self, name: str) -> str | None:
        found = canonical_name(name)
        return None if found is None or found.endswith(".layer_scalar") else gemma_name(found)

    def check(self, tensors: Mapping[str, TensorSource]) -> None:
        for name, source in tensors.items():
            if name.endswith(".layer_scalar") and float(source.read().reshape(-1)[0]) != 1.0:
                raise UnsupportedError(f"tensor {name}: expected 1, the only value that DeepSpec trains with")


def gemma_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a Gemma 4 text config to the keys of other drafters. Raises ConfigError,
    UnsupportedError.
    """
    if flag(config, "enable_moe_block") or number(config, "hidden_size_per_layer_input", 0.0) > 0:
        raise UnsupportedError(
            "config.json: enable_moe_block, hidden_size_per_layer_input: Gemma 4 layers with experts "
            "or per-layer embeddings are not supported"
        )
    rope = nested(config, "rope_parameters").get("full_attention")
    if not isinstance(rope, Mapping):
        raise wrong("rope_parameters", "an object for full_attention", rope)
    shared = flag(config, "attention_k_eq_v")
    return {
        **config,
        "num_key_value_heads": integer(
            config, "num_global_key_value_heads" if shared else "num_key_value_heads"
        ),
        "head_dim": integer(config, "global_head_dim"),
        "hidden_act": config.get("hidden_activation"),
        "rope_parameters": rope,
    }


def gemma_name(name: str) -> str:
    """Returns the canonical name of a Gemma 4 tensor. Norms get the names that other drafters use."""
    for theirs, ours in _NAMES.items():
        if theirs in name:
            return name.replace(theirs, ours)
    return name


class EagleRepo(Dialect):
    """SafeAILab/EAGLE, the reference implementation: `midlayer.*`, and all config keys at the top level.

    This trainer writes no layer ids, so the default ids apply. If layer ids are at the top level, another
    tool added them, and they may have either convention. The trainer (eagle/traineagle3/cnets.py) ignores the
    config's theta in its rope. The inference code of the same project (eagle/model/cnets.py) uses theta for
    unscaled rope.
    """

    name = "eagle"
    title = "SafeAILab/EAGLE"
    classes = ("", "LlamaForCausalLM", "LlamaForCausalLMEagle3")

    def matches(self, seen: Seen) -> bool:
        return seen.has("midlayer.")

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        plain = ignored_theta(config, "SafeAILab/EAGLE's trainer uses", ("default",))
        return plain or theta_of_scaled_rope(config)


def theta_of_scaled_rope(config: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Returns an open choice for the theta of scaled rope: the trainer and its inference code use 10000
    instead of the config's value, so no default is safe.
    """
    return ignored_theta(config, "with linear rope_scaling, SafeAILab/EAGLE uses", ("linear",), is_open=True)


class Eagle1(Dialect):
    """EAGLE-1 and EAGLE-2 checkpoints. Both have the same format, because EAGLE-2 differs only in the shape
    of the draft trees.

    `fc` reads `[embedding ; feature]`. Its output goes into an ordinary decoder layer without a norm before
    attention. The target's head reads the layer's output without a norm (SafeAILab/EAGLE:
    eagle/model/cnets1.py). The feature is the target's last hidden state after its final norm, the input of
    its head (eagle/model/ea_model.py; SafeAILab/EAGLE#76). SafeAILab, LeptonAI and others have trained such
    drafters. In copies for SGLang the class is `LlamaForCausalLMEagle`, in copies for vLLM
    `EagleLlamaForCausalLM`.
    """

    name = "eagle1"
    title = "SafeAILab/EAGLE 1 and 2"
    fuses_embedding = True
    also = ("EagleLlamaForCausalLM", "LlamaForCausalLMEagle", "Qwen2ForCausalLM", "Qwen2ForCausalLMEagle")
    """Classes in addition to EAGLE-3's. All these drafters are dense, even if the target is not."""

    def matches(self, seen: Seen) -> bool:
        fc, q = seen.shape("fc.weight"), seen.shape("layers.0.self_attn.q_proj.weight")
        if fc is None or q is None or len(fc) != 2 or len(q) != 2:
            return False
        # An EAGLE-3 layer differs from an EAGLE-1 layer: its inputs are twice as wide, and it has a norm for
        # the feature.
        return fc[1] == 2 * fc[0] and q[1] == fc[0] and not seen.has("layers.0.hidden_norm.")

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = dict(seen.config)
        for key, tensor in (("bias", "fc.bias"), ("qkv_bias", "layers.0.self_attn.q_proj.bias")):
            stated, has_tensor = config.get(key), seen.shape(tensor) is not None
            if stated is not None and stated is not has_tensor:
                raise ConfigError(
                    f"config.json: {key} is {shown(stated)}, but the checkpoint has "
                    f"{'a' if has_tensor else 'no'} tensor {tensor}; set it as the drafter was trained"
                )
        return config

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        return theta_of_scaled_rope(config)


class MistralEagle(Dialect):
    """Mistral's EAGLE drafters: EAGLE-1's `fc` before ordinary decoder layers with all norms.

    The state after the final norm is the input of the head and of the next step (vllm-project/vllm:
    vllm/model_executor/models/mistral_eagle.py). The drafter uses the target's embeddings and head.
    """

    name = "mistral"
    title = "Mistral EAGLE"
    classes = ("EagleMistralForCausalLM",)
    fuses_embedding = True

    def flatten(self, seen: Seen) -> dict[str, Any]:
        return {**seen.config, "norm_output": True}


_OWN_KEYS = ("next_layer_regular", "parallel_draft_step")
_KIMI_TOO = "use_mtp_layernorm"
"""Key of Model Optimizer's `eagle_config` that TorchSpec's draft configs for Kimi have too."""


class ModelOpt(Dialect):
    """NVIDIA Model Optimizer, Hugging Face export: `layers.{i}.*` with a detailed `eagle_config`.

    In earlier exports, and in Megatron exports of a single layer, the same tensors are named `midlayer.*`. A
    layer id in `eagle_config` is the number of the block whose output was captured.

    The names `layers.0.*` came with a change of the trainer (2025-12-19). Since then, the first layer's
    input_layernorm normalises the embedding, which was not normalised before. The trainer's decoder layer
    applies this norm also to the feature, before hidden_norm
    (modelopt/torch/speculative/plugins/modeling_eagle.py, unchanged in 0.47.0). Inference engines apply only
    hidden_norm to the feature.
    """

    name = "modelopt"
    conventions = (None, "post")
    title = "NVIDIA Model Optimizer"

    def matches(self, seen: Seen) -> bool:
        if "_torchspec_version" in seen.config:
            return False
        own = any(key in seen.eagle_config for key in (*_OWN_KEYS, _KIMI_TOO))
        return own or (seen.has("layers.0.") and "use_aux_hidden_state" in seen.eagle_config)

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        # If model_type is kimi_k2, TorchSpec's export for vLLM looks the same, but its layer ids have another
        # convention.
        unsure = seen.has("layers.0.") and seen.config.get("model_type") == "kimi_k2"
        if unsure and not any(key in seen.eagle_config for key in _OWN_KEYS):
            return None
        return super().convention(seen, ids_key)

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        if not seen.has("layers.0."):
            return ()
        own = any(key in seen.eagle_config for key in _OWN_KEYS)
        if own and not any(c.get("norm_before_fc") for c in (config, seen.eagle_config)):
            why = (
                "engines apply one norm to the hidden states, but in layers.0 Model Optimizer's trainer "
                "applies input_layernorm before hidden_norm"
            )
            return (Choice("feature_norm", ("twice", "once"), why),)
        why = (
            f"eagle_config has {' and '.join(_OWN_KEYS)} but no norm_before_fc, as from Model Optimizer's "
            "Hugging Face path, which applies two norms to the hidden states in layers.0"
        )
        return (Choice("feature_norm", ("once", "twice"), why),)


class SpecForge(Dialect):
    """sgl-project/SpecForge: `midlayer.*`, no embeddings, and optional layer ids in `eagle_config`. A layer
    id is the number of the block before the feature.

    Two settings changed their meaning, and no field of the checkpoint shows which meaning applies
    (sgl-project/SpecForge: specforge/modeling/draft/llama3_eagle.py). `norm_output` came on 2026-07-19 and is
    in release 0.2.0. In that release, `norm_output` (default true) sets whether the head reads the normalised
    state, and the state before the norm is always the input of the next step. Since SpecForge#879
    (2026-09-15), `norm_output` is EAGLE 3.1's switch, as in inference engines. The second setting is rope:
    until 2025-10-30, the trainer ignored the config's theta, and until 2025-11-12 llama3's scaling.
    """

    name = "specforge"
    title = "SpecForge"
    conventions = (None, "post")
    classes = ("PEagleDraftModel", "DeepseekV3ForCausalLMEagle3")

    def matches(self, seen: Seen) -> bool:
        switches = {"eagle_config", "fc_norm", "norm_output"}
        if seen.architecture == "PEagleDraftModel":
            return True
        return seen.has("midlayer.") and any(seen.config.get(key) is not None for key in switches)

    def flatten(self, seen: Seen) -> dict[str, Any]:
        if seen.architecture == "PEagleDraftModel" and seen.config.get("norm_before_residual") is None:
            raise ConfigError(
                "config.json: norm_before_residual: expected true or false, found no such key. SpecForge "
                "does not write this key; add the value of --norm-before-residual of the training run (in "
                "newer versions training.norm_before_residual)"
            )
        return dict(seen.config)

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        if seen.architecture == "PEagleDraftModel":
            return ()
        switch = config.get("norm_output")
        if switch is True:
            why = (
                "norm_output: true means EAGLE 3.1's output norm since SpecForge#879 (2026-09-15), but it "
                "means the state before the norm in SpecForge 0.2.0 and in its sources from 2026-07-19 on"
            )
            return (Choice("feed", ("post", "pre"), why),)
        if switch is False:
            why = (
                "in SpecForge 0.2.0 and in its sources from 2026-07-19 to 2026-09-15, norm_output: false "
                "means that the head reads the state without the norm"
            )
            return (Choice("head_norm", ("yes", "no"), why),)
        # Checkpoints with latent attention or fc_norm are newer than both fixes of RoPE.
        if seen.is_latent_class or config.get("fc_norm") is not None:
            return ()
        theta = ignored_theta(config, "SpecForge before 2025-10-30 uses", ("default", "linear", "llama3"))
        if rope_kind(config) != "llama3":
            return theta
        why = "SpecForge before 2025-11-12 trains without llama3's scaling"
        return (*theta, Choice("rope_scaling", ("config", "none"), why))


class Speculators(Dialect):
    """Checkpoints of vllm-project/speculators: the layer's config is nested in `transformer_layer_config`,
    tensors are named `layers.{i}.*`, and layer ids are boundary ids.

    The config is flattened as in vLLM (vllm-project/vllm: transformers_utils/configs/speculators/algos.py):
    the top level overrides the nested config.
    """

    name = "speculators"
    title = "speculators"
    conventions = ("boundary", "boundary")
    classes = ("Eagle3Speculator", "Eagle3DraftModel", "PEagleSpeculator")

    def matches(self, seen: Seen) -> bool:
        return any(key in seen.config for key in ("transformer_layer_config", "speculators_config"))

    def flatten(self, seen: Seen) -> dict[str, Any]:
        config = nested_config(seen.config)
        if seen.config.get("norm_before_residual") is None:
            raise ConfigError(
                "config.json: norm_before_residual: expected true or false, found no such key. vLLM assumes "
                "true, the speculators class false; add the value that the drafter was trained with (the "
                "training command's default is true)"
            )
        return config


def nested_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested layer config merged with the top level, which takes precedence. Raises
    ConfigError.
    """
    layer = nested(config, "transformer_layer_config")
    if not layer:
        raise wrong("transformer_layer_config", "an object", None)
    # The key tie_word_embeddings is a copy from the target, so the drafter ignores it.
    base = {key: value for key, value in layer.items() if key != "tie_word_embeddings"}
    return {**base, **{key: value for key, value in config.items() if value is not None}}


class TorchSpec(Dialect):
    """lightseekorg/TorchSpec: `midlayer.*`, or `layers.0.*` after its export.

    In TorchSpec's own format, a layer id is the number of the block after which a feature was captured. Until
    June 2026 only the export for vLLM wrote `layers.0.*`. It added 1 to the layer ids for `model_type:
    kimi_k2`. Since 2026-06-30 every export writes `layers.0.*`, so layer ids are ambiguous if model_type is
    kimi_k2. `num_aux_hidden_states` or `eagle_config.use_aux_hidden_state` distinguishes a TorchSpec
    checkpoint from SpecForge's. `_torchspec_version`, if present, distinguishes it from Model Optimizer's.

    Until 2026-08-09 TorchSpec's rope read `config.rope_theta`, which transformers 5 moves into
    rope_parameters. Scaled rope then used a theta of 10000 (torchspec/models/draft/llama3_eagle.py,
    deepseek_eagle.py). Rope with linear scaling never used the config's theta.
    """

    name = "torchspec"
    conventions = (None, "post")
    title = "TorchSpec"

    def matches(self, seen: Seen) -> bool:
        if "_torchspec_version" in seen.config:
            return True
        if seen.has("layers.0.") and seen.config.get("model_type") == "kimi_k2":
            return True
        marked = "num_aux_hidden_states" in seen.config or "use_aux_hidden_state" in seen.eagle_config
        return seen.has("midlayer.") and marked

    def convention(self, seen: Seen, ids_key: str) -> Convention | None:
        if seen.has("layers.0.") and seen.config.get("model_type") == "kimi_k2":
            return None
        return super().convention(seen, ids_key)

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        kinds = ("yarn", "deepseek_yarn", "llama3", "linear")
        return ignored_theta(config, "TorchSpec before 2026-08-09 may have used", kinds)


PARALLEL_CLASSES = frozenset({"PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM"})
_QWEN3_CLASSES = frozenset({"Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM"})
_LATENT_CLASSES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")


class VllmNative(Dialect):
    """Checkpoints for vLLM's own classes (`Eagle3LlamaForCausalLM`, and with latent attention
    `Eagle3DeepseekV2ForCausalLM`), including AngelSlim's. In vLLM, one class has several names
    (vllm-project/vllm: model_executor/models/registry.py).

    The tensors are named `midlayer.*` or `layers.0.*`, optionally with the prefix `model.`. The class does
    not identify the trainer, so explicit layer ids are ambiguous unless their values show the convention.
    AngelSlim's trainer (train/models/draft/llama_eagle3.py, unchanged in 0.5.0) builds unscaled and linear
    rope without the config's theta.
    """

    name = "vllm"
    title = "vLLM (Eagle3LlamaForCausalLM, Eagle3DeepseekV2ForCausalLM)"
    classes = (
        *PARALLEL_CLASSES, *_QWEN3_CLASSES, *_LATENT_CLASSES, "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM",
    )  # fmt: skip
    """Classes that vLLM runs with its llama code or its qwen3 code. The qwen3 code has norms of q and k."""

    def matches(self, seen: Seen) -> bool:
        # TorchSpec and Model Optimizer use vLLM's class name too, but their checkpoints can be recognised by
        # other keys.
        if seen.is_latent_class:
            return not seen.eagle_config and "_torchspec_version" not in seen.config
        if seen.architecture == "LlamaForCausalLMEagle3" and seen.shape(MASK_FEATURE) is not None:
            return not seen.eagle_config and not seen.has(
                "midlayer."
            )  # vLLM's published P-EAGLE drafters have no midlayer
        return seen.architecture in self.classes

    def flatten(self, seen: Seen) -> dict[str, Any]:
        if seen.architecture in _QWEN3_CLASSES and seen.shape("layers.0.self_attn.q_norm.weight") is None:
            raise TensorError(
                f"{seen.architecture}: expected the tensors q_norm and k_norm in layer 0, found neither. If "
                'the drafter was trained without them, set architectures to ["Eagle3LlamaForCausalLM"]'
            )
        return dict(seen.config)

    def choices(self, seen: Seen, config: Mapping[str, Any]) -> tuple[Choice, ...]:
        if seen.architecture != "Eagle3LlamaForCausalLM" or seen.shape(MASK_FEATURE) is not None:
            return ()
        return ignored_theta(config, "AngelSlim, which writes this class, uses", ("default", "linear"))
