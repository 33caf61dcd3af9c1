// SPDX-License-Identifier: MIT
#include "draft_files.h"

#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "gguf/draft_file.h"
#include "gguf/keys.h"

namespace eaglecpp {

constexpr int n_embd = 32, n_ff = 48, n_head = 2, n_head_kv = 1, head_dim = 16, n_vocab = 20, n_draft_vocab = 8,
              n_aux = 3, n_layer_target = 6;
constexpr int n_rank = 8, n_taps = 2, n_group = 8;
constexpr int kv_rank = 16, q_rank = 24, nope_dim = 12, rope_dim = 4, value_dim = 10;

// Keys and tensors of a file that is still to be written.
class DraftParts {
  public:
    explicit DraftParts(Kind kind)
        : arch_(kind == Kind::eagle     ? keys::arch_eagle
                : kind == Kind::eagle3  ? keys::arch_eagle3
                : kind == Kind::dspark  ? keys::arch_dflash
                : kind == Kind::dflash2 ? keys::arch_dflash_ex
                                        : keys::arch_eagle31),
          kind_(kind) {
        set_keys();
        add_tensors();
        for (int i = 0; i < n_draft_vocab; ++i) d2t.push_back(2 * i);
    }

    std::string key(const char * pattern) const { return fill(pattern, arch_); }
    void u32(const char * pattern, uint32_t v) { gguf_set_val_u32(gguf.get(), key(pattern).c_str(), v); }
    void f32(const char * pattern, float v) { gguf_set_val_f32(gguf.get(), key(pattern).c_str(), v); }
    void flag(const char * pattern, bool v) { gguf_set_val_bool(gguf.get(), key(pattern).c_str(), v); }
    void str(const char * pattern, const char * v) { gguf_set_val_str(gguf.get(), key(pattern).c_str(), v); }
    void ids(const char * pattern, const std::vector<int32_t> & v) {
        gguf_set_arr_data(gguf.get(), key(pattern).c_str(), GGUF_TYPE_INT32, v.data(), v.size());
    }
    void drop(const char * pattern) { gguf_remove_key(gguf.get(), key(pattern).c_str()); }
    void tokens(int n) {
        std::vector<std::string> texts;
        for (int i = 0; i < n; ++i) texts.push_back("t" + std::to_string(i));
        std::vector<const char *> pointers;
        for (const auto & t : texts) pointers.push_back(t.c_str());
        gguf_set_arr_str(gguf.get(), keys::tokenizer_tokens, pointers.data(), pointers.size());
    }

    struct Tensor {
        std::string name;
        std::vector<int64_t> ne;
        ggml_type type = GGML_TYPE_F32;
    };
    Tensor & tensor(const std::string & name) {
        return *std::find_if(tensors.begin(), tensors.end(), [&](const Tensor & t) { return t.name == name; });
    }
    void drop_tensor(const std::string & name) { tensors.erase(tensors.begin() + (&tensor(name) - tensors.data())); }

    void write(const std::string & path) {
        const ggml_context_ptr ctx(ggml_init({16 << 20, nullptr, false}));
        tensors.push_back({keys::t_d2t, {n_draft_vocab}, type_d2t});
        for (const Tensor & one : tensors) {
            ggml_tensor * t = ggml_new_tensor(ctx.get(), one.type, (int)one.ne.size(), one.ne.data());
            ggml_set_name(t, one.name.c_str());
            auto * bytes = (uint8_t *)t->data;
            for (size_t i = 0; i < ggml_nbytes(t); ++i) bytes[i] = (uint8_t)(i * 31 % 7);
            if (one.type == GGML_TYPE_I64) std::copy(d2t.begin(), d2t.end(), (int64_t *)t->data);
            gguf_add_tensor(gguf.get(), t);
        }
        gguf_write_to_file(gguf.get(), path.c_str(), false);
    }

    gguf_context_ptr gguf{gguf_init_empty()};
    std::vector<Tensor> tensors;
    std::vector<int64_t> d2t;
    ggml_type type_d2t = GGML_TYPE_I64;

  private:
    bool is_eagle_1() const { return kind_ == Kind::eagle; }
    bool is_latent() const { return kind_ == Kind::latent; }
    bool is_block() const { return kind_ == Kind::dspark || kind_ == Kind::dflash2; }
    bool has_fc_norm() const { return kind_ == Kind::eagle31 || is_latent(); }

    void set_keys() {
        str(keys::architecture, arch_.c_str());
        str(keys::name, "tiny");
        u32(keys::block_count, 1);
        u32(keys::context_length, 128);
        u32(keys::embedding_length, n_embd);
        u32(keys::feed_forward_length, n_ff);
        u32(keys::head_count, n_head);
        u32(keys::head_count_kv, n_head_kv);
        u32(keys::key_length, is_latent() ? kv_rank + rope_dim : head_dim);
        if (is_latent()) {
            u32(keys::value_length, kv_rank);
            u32(keys::kv_lora_rank, kv_rank);
            u32(keys::q_lora_rank, q_rank);
            u32(keys::key_length_mla, nope_dim + rope_dim);
            u32(keys::value_length_mla, value_dim);
            u32(keys::rope_dimension_count, rope_dim);
            f32(keys::attention_scale, 0.25f);
        }
        u32(keys::vocab_size, n_vocab);
        f32(keys::rms_epsilon, 1e-5f);
        f32(keys::rope_freq_base, 10000.0f);
        ids(keys::target_layers, is_eagle_1() ? std::vector<int32_t>{n_layer_target + 1} : std::vector{1, 3, 5});
        u32(keys::target_hidden_size, n_embd);
        u32(keys::target_block_count, n_layer_target);
        if (has_fc_norm()) flag(keys::fc_norm, true);
        if (is_block()) {
            u32(keys::block_size, 5);
            u32(keys::draft_vocab_size, n_draft_vocab);
            u32(keys::tokenizer_mask, 3);
            flag(keys::sample_from_anchor, kind_ == Kind::dspark);
        } else if (kind_ != Kind::eagle3) {
            flag(keys::norm_output, !is_eagle_1());
            str(keys::rope_type, "norm");
            u32(keys::draft_vocab_size, n_draft_vocab);
        }
        if (kind_ == Kind::dflash2) {
            u32(keys::conv_kernel_size, n_taps);
            u32(keys::conv_group_size, n_group);
            u32(keys::selector_rank, n_rank);
            u32(keys::selector_top_k, 4);
        }
        tokens(n_vocab);
    }

    void add(const std::string & name, std::vector<int64_t> ne) { tensors.push_back({name, std::move(ne)}); }

    void add_tensors() {
        const int n_in = is_eagle_1() || is_block() ? n_embd : 2 * n_embd;
        add(keys::t_fc, {(is_eagle_1() ? 2 : n_aux) * n_embd, n_embd});
        for (int i = 0; has_fc_norm() && i < n_aux; ++i) add(fill(keys::t_fc_norm, i), {n_embd});
        add(keys::t_output, {n_embd, n_draft_vocab});
        if (!is_eagle_1()) {
            add(keys::t_output_norm, {n_embd});
            add(fill(keys::t_attn_norm, 0), {n_embd});
            if (!is_block()) add(fill(keys::t_attn_norm_2, 0), {n_embd});
        }
        if (is_block()) {
            add(keys::t_enc_output_norm, {n_embd});
            for (const char * norm : {keys::t_attn_q_norm, keys::t_attn_k_norm}) add(fill(norm, 0), {head_dim});
        }
        if (kind_ == Kind::dspark) {
            add(keys::t_markov_w1, {n_rank, n_vocab});
            add(keys::t_markov_w2, {n_rank, n_draft_vocab});
            add(keys::t_confidence, {n_embd + n_rank});
            add(keys::t_confidence_bias, {1});
        }
        if (kind_ == Kind::dflash2) {
            add(keys::t_selector_before, {n_rank, n_vocab});
            add(keys::t_selector_after, {n_rank, n_vocab});
            add(keys::t_selector_hidden, {n_embd, n_rank});
            for (const char * base : {keys::t_attn_conv_base, keys::t_ffn_conv_base}) {
                add(fill(base, 0), {n_embd, n_taps, 2});
            }
            for (const char * kernel : {keys::t_attn_conv, keys::t_ffn_conv}) {
                add(fill(kernel, 0), {n_embd, 2 * n_taps * (n_embd / n_group)});
            }
        }
        if (is_latent()) {
            add(fill(keys::t_attn_q_a, 0), {n_in, q_rank});
            add(fill(keys::t_attn_q_a_norm, 0), {q_rank});
            add(fill(keys::t_attn_q_b, 0), {q_rank, n_head * (nope_dim + rope_dim)});
            add(fill(keys::t_attn_kv_a_mqa, 0), {n_in, kv_rank + rope_dim});
            add(fill(keys::t_attn_kv_a_norm, 0), {kv_rank});
            add(fill(keys::t_attn_k_b, 0), {nope_dim, kv_rank, n_head});
            add(fill(keys::t_attn_v_b, 0), {kv_rank, value_dim, n_head});
        } else {
            add(fill(keys::t_attn_q, 0), {n_in, n_head * head_dim});
            for (const char * kv : {keys::t_attn_k, keys::t_attn_v}) add(fill(kv, 0), {n_in, n_head_kv * head_dim});
        }
        add(fill(keys::t_attn_output, 0), {n_head * (is_latent() ? value_dim : head_dim), n_embd});
        add(fill(keys::t_ffn_norm, 0), {n_embd});
        for (const char * in : {keys::t_ffn_gate, keys::t_ffn_up}) add(fill(in, 0), {n_embd, n_ff});
        add(fill(keys::t_ffn_down, 0), {n_ff, n_embd});
    }

    std::string arch_;
    Kind kind_;
};

namespace {

using Parts = DraftParts;

Flaw without(const char * pattern, const char * word) {
    return {word, [=](Parts & p) { p.drop(pattern); }};
}
Flaw with(const char * pattern, uint32_t value, const char * word) {
    return {word, [=](Parts & p) { p.u32(pattern, value); }};
}
Flaw with(const char * pattern, const char * value, const char * word) {
    return {word, [=](Parts & p) { p.str(pattern, value); }};
}
Flaw without_tensor(const std::string & name, const char * word) {
    return {word, [=](Parts & p) { p.drop_tensor(name); }};
}
Flaw with_tensor(const std::string & name, const char * word) {
    return {word, [=](Parts & p) { p.tensors.push_back({name, {n_embd}}); }};
}

const Flaw no_fc = without_tensor(keys::t_fc, "missing tensor 'fc.weight'");
const Flaw no_switch = without(keys::norm_output, "norm_output");
const Flaw no_layers{"target_layers", [](Parts & p) { p.ids(keys::target_layers, {}); }};
const Flaw unknown_rope = with(keys::rope_type, "spiral", "rope.type");
const Flaw d2t_beyond{"entry 3 is 99", [](Parts & p) { p.d2t[3] = 99; }};

const std::vector<Flaw> of_eagle31 = {
    with(keys::architecture, "llama", "general.architecture"),
    without(keys::block_count, "block_count"),
    with(keys::embedding_length, "32", "embedding_length"),
    {"feed_forward_length",
     [](Parts & p) { gguf_set_val_i32(p.gguf.get(), p.key(keys::feed_forward_length).c_str(), -48); }},
    with(keys::head_count, 0u, "head_count"),
    {"do not go together", [](Parts & p) { p.u32(keys::key_length, 15), p.u32(keys::value_length, 15); }},
    with(keys::embedding_length, 0x7fffffff, "embedding_length"),
    no_layers,
    {"layer id 9", [](Parts & p) { p.ids(keys::target_layers, {1, 3, 9}); }},
    no_switch,
    unknown_rope,
    with(keys::rope_scaling_type, "cubic", "rope.scaling.type"),
    {"layer_norm_rms_epsilon", [](Parts & p) { p.f32(keys::rms_epsilon, NAN); }},
    no_fc,
    with_tensor("surprise.weight", "unknown tensor 'surprise.weight'"),
    {"'output_norm.weight' has shape", [](Parts & p) { ++p.tensor(keys::t_output_norm).ne[0]; }},
    {"'output_norm.weight' has shape [32, 1, 2], expected [32]",
     [](Parts & p) { p.tensor(keys::t_output_norm).ne = {n_embd, 1, 2}; }},
    {"'output_norm.weight' has type", [](Parts & p) { p.tensor(keys::t_output_norm).type = GGML_TYPE_Q8_0; }},
    {"'d2t'", [](Parts & p) { p.type_d2t = GGML_TYPE_I32; }},
    d2t_beyond,
    {"entry 3 is 0", [](Parts & p) { p.d2t[3] = 0; }},
    {"tokenizer has 5 tokens", [](Parts & p) { p.tokens(5); }},
    {"truncated",
     {},
     [](const std::string & path) { std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100); }},
    {"header", {}, [](const std::string & path) { std::filesystem::resize_file(path, 300); }},
    {"not a GGUF file", {}, [](const std::string & path) { std::ofstream(path) << "PK\3\4 this is a zip file"; }},
};

const std::vector<Flaw> of_eagle = {
    with(keys::target_hidden_size, n_embd / 2u, "as wide as its target"),
    {"expected the one id 7", [](Parts & p) { p.ids(keys::target_layers, {9}); }},
    no_layers,
    with_tensor("blk.0.attn_norm.weight", "unknown tensor 'blk.0.attn_norm.weight'"),
    {"written by a fork", [](Parts & p) { p.drop(keys::target_layers), p.ids("{arch}.extract_layers", {7}); }},
    with(keys::kv_lora_rank, (uint32_t)kv_rank, "with latent attention is not supported"),
    no_switch,
    no_fc,
    d2t_beyond,
};

const std::vector<Flaw> of_latent = {
    with(keys::head_count_kv, 2u, "expected 1 kv head"),
    with(keys::key_length, kv_rank + rope_dim - 2u, "rows of 20"),
    without(keys::attention_scale, "attention.scale"),
    {"attention.scale", [](Parts & p) { p.f32(keys::attention_scale, 0.0f); }},
    without(keys::key_length_mla, "key_length_mla"),
    with(keys::rope_type, "neox", "rope.type"),
    {"value_norm", [](Parts & p) { p.flag(keys::value_norm, true); }},
    without_tensor("blk.0.attn_v_b.weight", "missing tensor 'blk.0.attn_v_b.weight'"),
    with_tensor("blk.0.attn_kv_b.weight", "unknown tensor 'blk.0.attn_kv_b.weight'"),
    {"'blk.0.attn_k_b.weight' has shape",
     [](Parts & p) { p.tensor("blk.0.attn_k_b.weight").ne = {kv_rank, nope_dim, n_head}; }},
    unknown_rope,
    no_switch,
};

const std::vector<Flaw> of_dspark = {
    with(keys::block_size, 0u, "block_size"),
    with(keys::block_size, 1000000u, "block_size"),
    without(keys::block_size, "block_size"),
    without(keys::tokenizer_mask, "mask_token_id"),
    with(keys::tokenizer_mask, 20u, "token 20 is outside the vocabulary of 20"),
    {"'markov_w1.weight' has shape", [](Parts & p) { p.tensor(keys::t_markov_w1).ne[1] = 19; }},
    {"'markov_w2.weight' has shape", [](Parts & p) { p.tensor(keys::t_markov_w2).ne = {n_rank + 1, n_draft_vocab}; }},
    without_tensor(keys::t_markov_w2, "missing tensor 'markov_w2.weight'"),
    without_tensor(keys::t_enc_output_norm, "missing tensor 'enc.output_norm.weight'"),
    without_tensor("blk.0.attn_v.weight", "missing tensor 'blk.0.attn_v.weight'"),
    with_tensor("blk.0.attn_sinks.weight", "attention sinks"),
    with_tensor("blk.0.attn_norm_2.weight", "unknown tensor 'blk.0.attn_norm_2.weight'"),
    {"value_scale", [](Parts & p) { p.f32("{arch}.attention.value_scale", 0.5f); }},
    with(keys::hidden_activation, "relu", "hidden_activation"),
    {"norm_before_fc", [](Parts & p) { p.flag(keys::norm_before_fc, true); }},
    no_layers,
    no_fc,
    d2t_beyond,
};

const std::vector<Flaw> of_dflash2 = {
    with(keys::block_size, 1u, "at least 2 rows"),
    without(keys::sample_from_anchor, "sample_from_anchor"),
    {"selector_top_k", [](Parts & p) { p.flag(keys::sample_from_anchor, true); }},
    with(keys::selector_top_k, 9u, "found 9"),
    with(keys::selector_top_k, 0u, "selector_top_k"),
    without(keys::selector_rank, "selector_rank"),
    with(keys::selector_rank, 9u, "has shape"),
    with(keys::conv_group_size, 7u, "conv_group_size"),
    with(keys::conv_group_size, 0u, "conv_group_size"),
    with(keys::conv_kernel_size, 6u, "6 taps"),
    with(keys::conv_kernel_size, 9u, "conv_kernel_size"),
    without_tensor("blk.0.ffn_conv_proj.weight", "missing tensor 'blk.0.ffn_conv_proj.weight'"),
    {"causal_pattern",
     [](Parts & p) {
         const uint8_t two[] = {1, 0};
         gguf_set_arr_data(p.gguf.get(), p.key(keys::causal_pattern).c_str(), GGUF_TYPE_BOOL, two, 2);
     }},
    unknown_rope,
};

}  // namespace

const std::vector<Flaw> & flaws_of(Kind kind) {
    static const std::vector<Flaw> none;
    return kind == Kind::eagle     ? of_eagle
           : kind == Kind::eagle31 ? of_eagle31
           : kind == Kind::latent  ? of_latent
           : kind == Kind::dspark  ? of_dspark
           : kind == Kind::dflash2 ? of_dflash2
                                   : none;
}

void write_draft_file(const std::string & path, Kind kind, const Flaw & flaw) {
    DraftParts parts(kind);
    if (flaw.spoil) flaw.spoil(parts);
    parts.write(path);
    if (flaw.spoil_file) flaw.spoil_file(path);
}

}  // namespace eaglecpp
