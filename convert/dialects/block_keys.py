# SPDX-License-Identifier: MIT
"""Keys of a block drafter's config: keys that the converter reads, and keys that do not affect the drafts.

Any other key is rejected, as an unknown tensor is. The key may change the arithmetic, and the only sign of
wrong arithmetic would be poor acceptance. The lists come from the trainers' configs (deepseek-ai/DeepSpec,
sgl-project/SpecForge, vllm-project/speculators, NVIDIA/Model-Optimizer, NVIDIA-NeMo/Automodel,
lightseekorg/TorchSpec) and from published files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..config import shown
from ..errors import UnsupportedError

DEEPSEEK = "DeepSeek-V4's blocks, which have experts and several residual streams"
OTHER_ARITHMETIC = {
    "dspark_block_size": DEEPSEEK,
    "causal_head": "JetSpec's shifted positions and causal head",
    "draft_shift": "JetSpec's shifted positions and causal head",
    "log_snr_conditioning": "log_snr_conditioning",
    "use_gemma_norm": "norms that multiply by 1 + weight (use_gemma_norm)",
}
"""Keys that must be absent, false or 0, each with the unsupported arithmetic that it enables."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ = _words("""
    hidden_size target_hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim hidden_act vocab_size draft_vocab_size max_position_embeddings rms_norm_eps
    rope_theta rope_scaling rope_parameters partial_rotary_factor rope_is_neox_style is_neox_style
    layer_types sliding_window use_sliding_window sliding_window_non_causal use_swa swa_window_size
    is_causal causal dflash_query_causal attention_sink_bias attention_value_scale
    block_size mask_token_id num_target_layers target_layer_ids eagle_aux_hidden_state_layer_ids
    sample_from_anchor shift_label dspark_bonus_anchor target_num_hidden_layers use_confidence_head
    projector_type markov_rank dspark_markov_rank markov_head_type dspark_fixup_head_type
    enable_confidence_head conv_kernel_size conv_group_size selector_rank selector_top_k
    input_embedding_scale output_multiplier logit_scale final_logit_softcapping tie_word_embeddings
    dflash_config eaglecpp
""")
GEMMA = _words("""
    global_head_dim num_global_key_value_heads attention_k_eq_v hidden_activation enable_moe_block
    hidden_size_per_layer_input
""")
SPECULATORS = _words("""
    speculators_model_type speculators_config transformer_layer_config aux_hidden_state_layer_ids
""")
_ROPE = _words("""
    rope_type type rope_theta factor original_max_position_embeddings attention_factor attn_factor mscale
    mscale_all_dim beta_fast beta_slow extrapolation_factor low_freq_factor high_freq_factor truncate
    partial_rotary_factor mrope_section mrope_interleaved llama_4_scaling_beta max_position_embeddings
""")
_WITHOUT_EFFECT = re.compile(
    "|".join(
        (
            # Keys for names, versions and types of stored weights.
            r"_.*|architectures|model_type|model_arch|auto_map|(torch_)?dtype|torchscript|transformers_version",
            r"speculators_version|target_(text_)?model_type|target_model_name_or_path|dflasher|tokenizer_class",
            r"use_bfloat16|quantization_config|compression_config|problem_type|id2label|label2id",
            # Keys for the settings of the training.
            r"initializer_range|.*dropout|.*_pdrop|.*loss.*|(num|max)_anchors|ttt_length|step_loss_decay",
            r"confidence_head_alpha|train_embed_tokens|gradient_checkpointing|recompile_limit|num_aux_layers",
            r"num_(context_(features|layers)|aux_hidden_states)|use_aux_hidden_state|pure_draft_prefix_len",
            # Keys for running a model in inference engines and in transformers.
            r"use_cache|return_dict(_in_generate)?|output_\w+|chunk_size_feed_forward|is_(encoder_)?decoder",
            r"add_cross_attention|cross_attention_hidden_size|pruned_heads|finetuning_task|prefix",
            r"task_specific_params|tie_encoder_decoder|pretraining_tp|runtime_block_size",
            r"(bos|eos|pad|sep|cls|unk|image|video|audio|vision_(start|end)|[be]o[ia]|decoder_start)_token_\w+",
            r"(min|max)_length|do_sample|early_stopping|num_(beams|beam_groups|return_sequences)|temperature",
            r"diversity_penalty|top_[kp]|typical_p|(repetition|length|exponential_decay_length)_penalty",
            r"(encoder_)?no_repeat_ngram_size|bad_words_ids|forced_\w+_token_id|remove_invalid_values",
            r"(begin_)?suppress_tokens|confidence_temperatures|pard_token",
            # Keys for switches that are read from the tensors instead.
            r"(attention|mlp|qkv|use|conv)_bias|(use_)?qk_norm|has_(embed_tokens|lm_head)|attention_mode",
            r"confidence_head_with_markov",
            # Keys that were copied from the target's config. No drafter class reads these keys.
            r"(mamba|ssm|moe|router|vision|text|image|video|audio|mm|index)_\w+|linear_(conv|key|value|num|attn)_\w+",
            r"\w*(expert|mtp|nextn)\w*|full_attention_interval|attn_output_gate|output_gate_type",
            r"max_window_layers|decoder_sparse_step|mlp_only_layers|norm_topk_prob|n_group|topk_\w+",
            r"scoring_func|routed_scaling_factor|first_k_dense_replace|(q|kv)_lora_rank|v_head_dim",
            r"qk_(nope|rope|head)_\w+|full_attn_idxs|conv_L_cache|block_(multiple_of|ffn_\w+|auto_\w+|\w*dim)",
            r"norm_eps|vocab_size_per_layer_input|num_kv_shared_layers",
            r"use_double_wide_mlp|use_bidirectional_attention|swiglu_\w+|mlp_layer_types|indexer_types",
            r"num_dense_layers",
        )
    )
)


def refuse_unknown(config: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises UnsupportedError for keys of a flat config that may change the arithmetic."""
    unknown = [
        f"{key} = {shown(value)}"
        for key, value in config.items()
        if value is not None
        and key not in known
        and key not in OTHER_ARITHMETIC
        and not _WITHOUT_EFFECT.fullmatch(key)
    ]
    unknown += [f"{where}.{key} = {shown(value)}" for where, key, value in _rope(config) if key not in _ROPE]
    if unknown:
        raise UnsupportedError(
            f"config.json: unknown keys for a block drafter: {', '.join(unknown)}. An unknown key may change "
            "what the drafter computes. Remove a key if it has no effect on the drafts; otherwise this "
            "drafter is not supported"
        )


def _rope(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields every entry of a config's rope objects, of which transformers 5 may nest one per kind of
    layer.
    """
    for where in ("rope_parameters", "rope_scaling"):
        block = config.get(where)
        for key, value in block.items() if isinstance(block, Mapping) else ():
            nested = value.items() if isinstance(value, Mapping) else ((key, value),)
            yield from ((where, name, one) for name, one in nested if one is not None)
