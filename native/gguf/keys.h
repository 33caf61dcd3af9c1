// SPDX-License-Identifier: MIT
// Every key and tensor name of a drafter GGUF; mirrors convert/keys.py (a test compares the two). "{arch}" is `eagle`,
// `eagle3` or `eagle31`, "{i}" a layer or aux index. docs/gguf-format.md explains what they mean.
#pragma once

namespace eaglecpp::keys {

constexpr const char * arch_eagle = "eagle";      // EAGLE-1 and 2
constexpr const char * arch_eagle3 = "eagle3";    // what stock llama.cpp runs correctly
constexpr const char * arch_eagle31 = "eagle31";  // everything else

// general
constexpr const char * architecture = "general.architecture";
constexpr const char * name = "general.name";

// sizes
constexpr const char * vocab_size = "{arch}.vocab_size";
constexpr const char * context_length = "{arch}.context_length";
constexpr const char * embedding_length = "{arch}.embedding_length";
constexpr const char * block_count = "{arch}.block_count";
constexpr const char * feed_forward_length = "{arch}.feed_forward_length";
constexpr const char * head_count = "{arch}.attention.head_count";
constexpr const char * head_count_kv = "{arch}.attention.head_count_kv";
constexpr const char * key_length = "{arch}.attention.key_length";
constexpr const char * value_length = "{arch}.attention.value_length";
constexpr const char * kv_lora_rank = "{arch}.attention.kv_lora_rank";
constexpr const char * q_lora_rank = "{arch}.attention.q_lora_rank";
constexpr const char * key_length_mla = "{arch}.attention.key_length_mla";
constexpr const char * value_length_mla = "{arch}.attention.value_length_mla";
constexpr const char * attention_scale = "{arch}.attention.scale";
constexpr const char * rms_epsilon = "{arch}.attention.layer_norm_rms_epsilon";
constexpr const char * value_norm = "{arch}.attention.value_norm";
constexpr const char * hidden_activation = "{arch}.hidden_activation";
constexpr const char * embedding_scale = "{arch}.embedding_scale";
constexpr const char * logit_softcapping = "{arch}.final_logit_softcapping";
constexpr const char * mask_token = "{arch}.mask_token_id";
constexpr const char * parallel_depth = "{arch}.parallel_depth";
constexpr const char * sliding_window = "{arch}.attention.sliding_window";
constexpr const char * sliding_window_pattern = "{arch}.attention.sliding_window_pattern";

// rope
constexpr const char * rope_freq_base = "{arch}.rope.freq_base";
constexpr const char * rope_dimension_count = "{arch}.rope.dimension_count";
constexpr const char * rope_type = "{arch}.rope.type";
constexpr const char * rope_scaling_type = "{arch}.rope.scaling.type";
constexpr const char * rope_scaling_factor = "{arch}.rope.scaling.factor";
constexpr const char * rope_scaling_orig_ctx = "{arch}.rope.scaling.original_context_length";
constexpr const char * rope_scaling_attn_factor = "{arch}.rope.scaling.attn_factor";
constexpr const char * rope_scaling_ext_factor = "{arch}.rope.scaling.yarn_ext_factor";
constexpr const char * rope_scaling_beta_fast = "{arch}.rope.scaling.yarn_beta_fast";
constexpr const char * rope_scaling_beta_slow = "{arch}.rope.scaling.yarn_beta_slow";

// what makes it an EAGLE drafter
constexpr const char * target_layers = "{arch}.target_layers";
constexpr const char * target_hidden_size = "{arch}.target_hidden_size";
constexpr const char * draft_vocab_size = "{arch}.draft_vocab_size";
constexpr const char * norm_before_residual = "{arch}.norm_before_residual";
constexpr const char * norm_before_fc = "{arch}.norm_before_fc";
constexpr const char * fc_norm = "{arch}.fc_norm";
constexpr const char * norm_output = "{arch}.norm_output";
constexpr const char * head_norm = "{arch}.head_norm";
constexpr const char * logit_scale = "{arch}.logit_scale";

// the target it was made for
constexpr const char * tokenizer_tokens = "tokenizer.ggml.tokens";
constexpr const char * tokenizer_token_type = "tokenizer.ggml.token_type";
constexpr const char * target_block_count = "eaglecpp.target.block_count";

// what its training measured
constexpr const char * held_out_rates = "eaglecpp.held_out_rates";

// tensors; ".weight" and ".bias" are part of the name
constexpr const char * t_fc = "fc.weight";
constexpr const char * t_fc_bias = "fc.bias";
constexpr const char * t_fc_norm = "fc_norm.{i}.weight";
constexpr const char * t_enc_output_norm = "enc.output_norm.weight";
constexpr const char * t_mask_feature = "mask_feature.weight";
constexpr const char * t_d2t = "d2t";
constexpr const char * t_token_embd = "token_embd.weight";
constexpr const char * t_output_norm = "output_norm.weight";
constexpr const char * t_output = "output.weight";
constexpr const char * t_rope_freqs = "rope_freqs.weight";
constexpr const char * t_attn_norm = "blk.{i}.attn_norm.weight";
constexpr const char * t_attn_norm_2 = "blk.{i}.attn_norm_2.weight";
constexpr const char * t_attn_q = "blk.{i}.attn_q.weight";
constexpr const char * t_attn_k = "blk.{i}.attn_k.weight";
constexpr const char * t_attn_v = "blk.{i}.attn_v.weight";
constexpr const char * t_attn_q_a = "blk.{i}.attn_q_a.weight";
constexpr const char * t_attn_q_a_norm = "blk.{i}.attn_q_a_norm.weight";
constexpr const char * t_attn_q_b = "blk.{i}.attn_q_b.weight";
constexpr const char * t_attn_kv_a_mqa = "blk.{i}.attn_kv_a_mqa.weight";
constexpr const char * t_attn_kv_a_norm = "blk.{i}.attn_kv_a_norm.weight";
constexpr const char * t_attn_k_b = "blk.{i}.attn_k_b.weight";
constexpr const char * t_attn_v_b = "blk.{i}.attn_v_b.weight";
constexpr const char * t_attn_output = "blk.{i}.attn_output.weight";
constexpr const char * t_attn_q_bias = "blk.{i}.attn_q.bias";
constexpr const char * t_attn_k_bias = "blk.{i}.attn_k.bias";
constexpr const char * t_attn_v_bias = "blk.{i}.attn_v.bias";
constexpr const char * t_attn_output_bias = "blk.{i}.attn_output.bias";
constexpr const char * t_attn_q_norm = "blk.{i}.attn_q_norm.weight";
constexpr const char * t_attn_k_norm = "blk.{i}.attn_k_norm.weight";
constexpr const char * t_post_attn_norm = "blk.{i}.post_attention_norm.weight";
constexpr const char * t_post_ffn_norm = "blk.{i}.post_ffw_norm.weight";
constexpr const char * t_ffn_norm = "blk.{i}.ffn_norm.weight";
constexpr const char * t_ffn_gate = "blk.{i}.ffn_gate.weight";
constexpr const char * t_ffn_up = "blk.{i}.ffn_up.weight";
constexpr const char * t_ffn_down = "blk.{i}.ffn_down.weight";
constexpr const char * t_ffn_gate_bias = "blk.{i}.ffn_gate.bias";
constexpr const char * t_ffn_up_bias = "blk.{i}.ffn_up.bias";
constexpr const char * t_ffn_down_bias = "blk.{i}.ffn_down.bias";

constexpr const char * all[] = {
    architecture,
    name,
    vocab_size,
    context_length,
    embedding_length,
    block_count,
    feed_forward_length,
    head_count,
    head_count_kv,
    key_length,
    value_length,
    kv_lora_rank,
    q_lora_rank,
    key_length_mla,
    value_length_mla,
    attention_scale,
    rms_epsilon,
    value_norm,
    hidden_activation,
    embedding_scale,
    logit_softcapping,
    mask_token,
    parallel_depth,
    sliding_window,
    sliding_window_pattern,
    rope_freq_base,
    rope_dimension_count,
    rope_type,
    rope_scaling_type,
    rope_scaling_factor,
    rope_scaling_orig_ctx,
    rope_scaling_attn_factor,
    rope_scaling_ext_factor,
    rope_scaling_beta_fast,
    rope_scaling_beta_slow,
    target_layers,
    target_hidden_size,
    draft_vocab_size,
    norm_before_residual,
    norm_before_fc,
    fc_norm,
    norm_output,
    head_norm,
    logit_scale,
    tokenizer_tokens,
    tokenizer_token_type,
    target_block_count,
    held_out_rates,
    t_fc,
    t_fc_bias,
    t_fc_norm,
    t_enc_output_norm,
    t_mask_feature,
    t_d2t,
    t_token_embd,
    t_output_norm,
    t_output,
    t_rope_freqs,
    t_attn_norm,
    t_attn_norm_2,
    t_attn_q,
    t_attn_k,
    t_attn_v,
    t_attn_q_a,
    t_attn_q_a_norm,
    t_attn_q_b,
    t_attn_kv_a_mqa,
    t_attn_kv_a_norm,
    t_attn_k_b,
    t_attn_v_b,
    t_attn_output,
    t_attn_q_bias,
    t_attn_k_bias,
    t_attn_v_bias,
    t_attn_output_bias,
    t_attn_q_norm,
    t_attn_k_norm,
    t_post_attn_norm,
    t_post_ffn_norm,
    t_ffn_norm,
    t_ffn_gate,
    t_ffn_up,
    t_ffn_down,
    t_ffn_gate_bias,
    t_ffn_up_bias,
    t_ffn_down_bias,
};

}  // namespace eaglecpp::keys
