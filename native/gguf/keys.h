// SPDX-License-Identifier: MIT
// Every key and tensor name of a drafter GGUF; mirrors convert/keys.py (a test compares the two). "{arch}" is one of
// the architectures below, "{i}" a layer or aux index. docs/gguf-format.md explains what they mean.
#pragma once

namespace eaglecpp::keys {

constexpr const char * arch_eagle = "eagle";          // EAGLE-1 and 2
constexpr const char * arch_eagle3 = "eagle3";        // what stock llama.cpp runs correctly
constexpr const char * arch_eagle31 = "eagle31";      // every other EAGLE
constexpr const char * arch_dflash = "dflash";        // block drafters that stock llama.cpp runs correctly
constexpr const char * arch_dflash_ex = "dflash_ex";  // every other block drafter

#define EAGLECPP_KEYS(X)                                                    \
    /* general */                                                           \
    X(architecture, "general.architecture")                                 \
    X(name, "general.name")                                                 \
    /* sizes */                                                             \
    X(vocab_size, "{arch}.vocab_size")                                      \
    X(context_length, "{arch}.context_length")                              \
    X(embedding_length, "{arch}.embedding_length")                          \
    X(block_count, "{arch}.block_count")                                    \
    X(feed_forward_length, "{arch}.feed_forward_length")                    \
    X(head_count, "{arch}.attention.head_count")                            \
    X(head_count_kv, "{arch}.attention.head_count_kv")                      \
    X(key_length, "{arch}.attention.key_length")                            \
    X(value_length, "{arch}.attention.value_length")                        \
    X(kv_lora_rank, "{arch}.attention.kv_lora_rank")                        \
    X(q_lora_rank, "{arch}.attention.q_lora_rank")                          \
    X(key_length_mla, "{arch}.attention.key_length_mla")                    \
    X(value_length_mla, "{arch}.attention.value_length_mla")                \
    X(attention_scale, "{arch}.attention.scale")                            \
    X(rms_epsilon, "{arch}.attention.layer_norm_rms_epsilon")               \
    X(value_norm, "{arch}.attention.value_norm")                            \
    X(hidden_activation, "{arch}.hidden_activation")                        \
    X(embedding_scale, "{arch}.embedding_scale")                            \
    X(logit_softcapping, "{arch}.final_logit_softcapping")                  \
    X(mask_token, "{arch}.mask_token_id")                                   \
    X(parallel_depth, "{arch}.parallel_depth")                              \
    X(sliding_window, "{arch}.attention.sliding_window")                    \
    X(sliding_window_pattern, "{arch}.attention.sliding_window_pattern")    \
    /* rope */                                                              \
    X(rope_freq_base, "{arch}.rope.freq_base")                              \
    X(rope_dimension_count, "{arch}.rope.dimension_count")                  \
    X(rope_type, "{arch}.rope.type")                                        \
    X(rope_scaling_type, "{arch}.rope.scaling.type")                        \
    X(rope_scaling_factor, "{arch}.rope.scaling.factor")                    \
    X(rope_scaling_orig_ctx, "{arch}.rope.scaling.original_context_length") \
    X(rope_scaling_attn_factor, "{arch}.rope.scaling.attn_factor")          \
    X(rope_scaling_ext_factor, "{arch}.rope.scaling.yarn_ext_factor")       \
    X(rope_scaling_beta_fast, "{arch}.rope.scaling.yarn_beta_fast")         \
    X(rope_scaling_beta_slow, "{arch}.rope.scaling.yarn_beta_slow")         \
    /* what makes it an EAGLE drafter */                                    \
    X(target_layers, "{arch}.target_layers")                                \
    X(target_hidden_size, "{arch}.target_hidden_size")                      \
    X(draft_vocab_size, "{arch}.draft_vocab_size")                          \
    X(norm_before_residual, "{arch}.norm_before_residual")                  \
    X(norm_before_fc, "{arch}.norm_before_fc")                              \
    X(fc_norm, "{arch}.fc_norm")                                            \
    X(norm_output, "{arch}.norm_output")                                    \
    X(head_norm, "{arch}.head_norm")                                        \
    X(logit_scale, "{arch}.logit_scale")                                    \
    /* what makes it a block drafter */                                     \
    X(block_size, "{arch}.block_size")                                      \
    X(sample_from_anchor, "{arch}.sample_from_anchor")                      \
    X(causal, "{arch}.attention.causal")                                    \
    X(causal_pattern, "{arch}.attention.causal_pattern")                    \
    X(conv_kernel_size, "{arch}.conv_kernel_size")                          \
    X(conv_group_size, "{arch}.conv_group_size")                            \
    X(selector_rank, "{arch}.selector_rank")                                \
    X(selector_top_k, "{arch}.selector_top_k")                              \
    X(tokenizer_mask, "tokenizer.ggml.mask_token_id")                       \
    /* the target it was made for */                                        \
    X(tokenizer_tokens, "tokenizer.ggml.tokens")                            \
    X(tokenizer_token_type, "tokenizer.ggml.token_type")                    \
    X(target_block_count, "eaglecpp.target.block_count")                    \
    /* what its training measured */                                        \
    X(held_out_rates, "eaglecpp.held_out_rates")                            \
    /* tensors; ".weight" and ".bias" are part of the name */               \
    X(t_fc, "fc.weight")                                                    \
    X(t_fc_bias, "fc.bias")                                                 \
    X(t_fc_norm, "fc_norm.{i}.weight")                                      \
    X(t_enc_output_norm, "enc.output_norm.weight")                          \
    X(t_mask_feature, "mask_feature.weight")                                \
    X(t_d2t, "d2t")                                                         \
    X(t_token_embd, "token_embd.weight")                                    \
    X(t_output_norm, "output_norm.weight")                                  \
    X(t_output, "output.weight")                                            \
    X(t_rope_freqs, "rope_freqs.weight")                                    \
    X(t_markov_w1, "markov_w1.weight")                                      \
    X(t_markov_w2, "markov_w2.weight")                                      \
    X(t_confidence, "conf_proj.weight")                                     \
    X(t_confidence_bias, "conf_proj.bias")                                  \
    X(t_selector_before, "selector_predecessor.weight")                     \
    X(t_selector_after, "selector_successor.weight")                        \
    X(t_selector_hidden, "selector_hidden.weight")                          \
    X(t_attn_norm, "blk.{i}.attn_norm.weight")                              \
    X(t_attn_norm_2, "blk.{i}.attn_norm_2.weight")                          \
    X(t_attn_q, "blk.{i}.attn_q.weight")                                    \
    X(t_attn_k, "blk.{i}.attn_k.weight")                                    \
    X(t_attn_v, "blk.{i}.attn_v.weight")                                    \
    X(t_attn_q_a, "blk.{i}.attn_q_a.weight")                                \
    X(t_attn_q_a_norm, "blk.{i}.attn_q_a_norm.weight")                      \
    X(t_attn_q_b, "blk.{i}.attn_q_b.weight")                                \
    X(t_attn_kv_a_mqa, "blk.{i}.attn_kv_a_mqa.weight")                      \
    X(t_attn_kv_a_norm, "blk.{i}.attn_kv_a_norm.weight")                    \
    X(t_attn_k_b, "blk.{i}.attn_k_b.weight")                                \
    X(t_attn_v_b, "blk.{i}.attn_v_b.weight")                                \
    X(t_attn_output, "blk.{i}.attn_output.weight")                          \
    X(t_attn_q_bias, "blk.{i}.attn_q.bias")                                 \
    X(t_attn_k_bias, "blk.{i}.attn_k.bias")                                 \
    X(t_attn_v_bias, "blk.{i}.attn_v.bias")                                 \
    X(t_attn_output_bias, "blk.{i}.attn_output.bias")                       \
    X(t_attn_q_norm, "blk.{i}.attn_q_norm.weight")                          \
    X(t_attn_k_norm, "blk.{i}.attn_k_norm.weight")                          \
    X(t_post_attn_norm, "blk.{i}.post_attention_norm.weight")               \
    X(t_post_ffn_norm, "blk.{i}.post_ffw_norm.weight")                      \
    X(t_ffn_norm, "blk.{i}.ffn_norm.weight")                                \
    X(t_ffn_gate, "blk.{i}.ffn_gate.weight")                                \
    X(t_ffn_up, "blk.{i}.ffn_up.weight")                                    \
    X(t_ffn_down, "blk.{i}.ffn_down.weight")                                \
    X(t_layer_scale, "blk.{i}.layer_output_scale.weight")                   \
    X(t_attn_conv_base, "blk.{i}.attn_conv_base")                           \
    X(t_attn_conv, "blk.{i}.attn_conv_proj.weight")                         \
    X(t_ffn_conv_base, "blk.{i}.ffn_conv_base")                             \
    X(t_ffn_conv, "blk.{i}.ffn_conv_proj.weight")                           \
    X(t_ffn_gate_bias, "blk.{i}.ffn_gate.bias")                             \
    X(t_ffn_up_bias, "blk.{i}.ffn_up.bias")                                 \
    X(t_ffn_down_bias, "blk.{i}.ffn_down.bias")

#define EAGLECPP_DECLARE(name, text) constexpr const char * name = text;
EAGLECPP_KEYS(EAGLECPP_DECLARE)
#undef EAGLECPP_DECLARE

#define EAGLECPP_NAME(name, text) name,
constexpr const char * all[] = {EAGLECPP_KEYS(EAGLECPP_NAME)};
#undef EAGLECPP_NAME

}  // namespace eaglecpp::keys
