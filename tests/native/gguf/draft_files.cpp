// SPDX-License-Identifier: MIT
#include "draft_files.h"

#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "draft/draft_file.h"

namespace eaglecpp {

// The size of a row is a multiple of 256 bytes, as in real drafters.
constexpr int n_embd = 64, n_ff = 64, n_head = 2, n_head_kv = 1, head_dim = 64, n_vocab = 20, n_draft_vocab = 8,
              n_aux = 3, n_layer_target = 6;
constexpr int n_rank = 8, n_taps = 2, n_group = 8;
constexpr int kv_rank = 128, q_rank = 64, nope_dim = 64, rope_dim = 64, value_dim = 128;

// Keys and tensors of a drafter file that is written later.
class DraftParts {
  public:
    explicit DraftParts(Kind kind)
        : arch_(kind == Kind::eagle     ? "eagle"
                : kind == Kind::eagle3  ? "eagle3"
                : kind == Kind::dspark  ? "dflash"
                : kind == Kind::dflash2 ? "dflash_ex"
                                        : "eagle31"),
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
        gguf_set_arr_str(gguf.get(), "tokenizer.ggml.tokens", pointers.data(), pointers.size());
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
        tensors.push_back({"d2t", {n_draft_vocab}, type_d2t});
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
    bool has_fc_norm() const { return arch_ == "eagle31"; }
    int n_layer() const { return kind_ == Kind::windows ? 3 : 1; }

    void set_keys() {
        str("general.architecture", arch_.c_str());
        str("general.name", "tiny");
        u32("{arch}.block_count", n_layer());
        u32("{arch}.context_length", 128);
        u32("{arch}.embedding_length", n_embd);
        u32("{arch}.feed_forward_length", n_ff);
        u32("{arch}.attention.head_count", n_head);
        u32("{arch}.attention.head_count_kv", n_head_kv);
        u32("{arch}.attention.key_length", is_latent() ? kv_rank + rope_dim : head_dim);
        if (is_latent()) {
            u32("{arch}.attention.value_length", kv_rank);
            u32("{arch}.attention.kv_lora_rank", kv_rank);
            u32("{arch}.attention.q_lora_rank", q_rank);
            u32("{arch}.attention.key_length_mla", nope_dim + rope_dim);
            u32("{arch}.attention.value_length_mla", value_dim);
            u32("{arch}.rope.dimension_count", rope_dim);
            f32("{arch}.attention.scale", 0.25f);
        }
        u32("{arch}.vocab_size", n_vocab);
        f32("{arch}.attention.layer_norm_rms_epsilon", 1e-5f);
        f32("{arch}.rope.freq_base", 10000.0f);
        ids("{arch}.target_layers", is_eagle_1() ? std::vector<int32_t>{n_layer_target + 1} : std::vector{1, 3, 5});
        u32("{arch}.target_hidden_size", n_embd);
        u32("eaglecpp.target.block_count", n_layer_target);
        if (has_fc_norm()) flag("{arch}.fc_norm", true);
        if (kind_ == Kind::windows) {
            u32("{arch}.attention.sliding_window", 8);
            const uint8_t slides[] = {1, 0, 1};
            gguf_set_arr_data(gguf.get(), key("{arch}.attention.sliding_window_pattern").c_str(), GGUF_TYPE_BOOL,
                              slides, 3);
        }
        if (is_block()) {
            u32("{arch}.block_size", 5);
            u32("{arch}.draft_vocab_size", n_draft_vocab);
            u32("tokenizer.ggml.mask_token_id", 3);
            flag("{arch}.sample_from_anchor", kind_ == Kind::dspark);
        } else if (kind_ != Kind::eagle3) {
            flag("{arch}.norm_output", !is_eagle_1());
            str("{arch}.rope.type", "norm");
            u32("{arch}.draft_vocab_size", n_draft_vocab);
        }
        if (kind_ == Kind::dflash2) {
            u32("{arch}.conv_kernel_size", n_taps);
            u32("{arch}.conv_group_size", n_group);
            u32("{arch}.selector_rank", n_rank);
            u32("{arch}.selector_top_k", 4);
        }
        tokens(n_vocab);
    }

    void add(const std::string & name, std::vector<int64_t> ne) { tensors.push_back({name, std::move(ne)}); }

    void add_tensors() {
        add("fc.weight", {(is_eagle_1() ? 2 : n_aux) * n_embd, n_embd});
        for (int i = 0; has_fc_norm() && i < n_aux; ++i) add(fill("fc_norm.{i}.weight", i), {n_embd});
        add("output.weight", {n_embd, n_draft_vocab});
        if (!is_eagle_1()) add("output_norm.weight", {n_embd});
        if (is_block()) add("enc.output_norm.weight", {n_embd});
        if (kind_ == Kind::dspark) {
            add("markov_w1.weight", {n_rank, n_vocab});
            add("markov_w2.weight", {n_rank, n_draft_vocab});
            add("conf_proj.weight", {n_embd + n_rank});
            add("conf_proj.bias", {1});
        }
        if (kind_ == Kind::dflash2) {
            add("selector_predecessor.weight", {n_rank, n_vocab});
            add("selector_successor.weight", {n_rank, n_vocab});
            add("selector_hidden.weight", {n_embd, n_rank});
        }
        for (int i = 0; i < n_layer(); ++i) add_layer(i);
    }

    void add_layer(int i) {
        const int n_in = is_eagle_1() || is_block() || i > 0 ? n_embd : 2 * n_embd;
        if (!is_eagle_1()) add(fill("blk.{i}.attn_norm.weight", i), {n_embd});
        if (n_in > n_embd) add(fill("blk.{i}.attn_norm_2.weight", i), {n_embd});
        if (is_block()) {
            for (const char * norm : {"blk.{i}.attn_q_norm.weight", "blk.{i}.attn_k_norm.weight"})
                add(fill(norm, i), {head_dim});
        }
        if (kind_ == Kind::dflash2) {
            for (const char * base : {"blk.{i}.attn_conv_base", "blk.{i}.ffn_conv_base"}) {
                add(fill(base, i), {n_embd, n_taps, 2});
            }
            for (const char * kernel : {"blk.{i}.attn_conv_proj.weight", "blk.{i}.ffn_conv_proj.weight"}) {
                add(fill(kernel, i), {n_embd, 2 * n_taps * (n_embd / n_group)});
            }
        }
        if (is_latent()) {
            add(fill("blk.{i}.attn_q_a.weight", i), {n_in, q_rank});
            add(fill("blk.{i}.attn_q_a_norm.weight", i), {q_rank});
            add(fill("blk.{i}.attn_q_b.weight", i), {q_rank, n_head * (nope_dim + rope_dim)});
            add(fill("blk.{i}.attn_kv_a_mqa.weight", i), {n_in, kv_rank + rope_dim});
            add(fill("blk.{i}.attn_kv_a_norm.weight", i), {kv_rank});
            add(fill("blk.{i}.attn_k_b.weight", i), {nope_dim, kv_rank, n_head});
            add(fill("blk.{i}.attn_v_b.weight", i), {kv_rank, value_dim, n_head});
        } else {
            add(fill("blk.{i}.attn_q.weight", i), {n_in, n_head * head_dim});
            for (const char * kv : {"blk.{i}.attn_k.weight", "blk.{i}.attn_v.weight"})
                add(fill(kv, i), {n_in, n_head_kv * head_dim});
        }
        add(fill("blk.{i}.attn_output.weight", i), {n_head * (is_latent() ? value_dim : head_dim), n_embd});
        add(fill("blk.{i}.ffn_norm.weight", i), {n_embd});
        for (const char * in : {"blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight"}) add(fill(in, i), {n_embd, n_ff});
        add(fill("blk.{i}.ffn_down.weight", i), {n_ff, n_embd});
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

// Flaws that all kinds can have, and flaws that only eagle31 can have.
const std::vector<Flaw> of_eagle31 = {
    {"final_logit_softcapping", [](Parts & p) { p.f32("{arch}.final_logit_softcapping", -5.0f); }},
    {"is false, but", [](Parts & p) { p.flag("{arch}.head_norm", false); }},
    {"unknown tensor 'output_norm.weight'",
     [](Parts & p) { p.flag("{arch}.head_norm", false), p.flag("{arch}.norm_output", false); }},
    with("general.architecture", "llama", "general.architecture"),
    without("{arch}.block_count", "block_count"),
    with("{arch}.embedding_length", "32", "embedding_length"),
    {"feed_forward_length",
     [](Parts & p) { gguf_set_val_i32(p.gguf.get(), p.key("{arch}.feed_forward_length").c_str(), -48); }},
    with("{arch}.attention.head_count", 0u, "head_count"),
    {"contradict each other",
     [](Parts & p) { p.u32("{arch}.attention.key_length", 15), p.u32("{arch}.attention.value_length", 15); }},
    with("{arch}.embedding_length", 0x7fffffff, "embedding_length"),
    {"target_layers", [](Parts & p) { p.ids("{arch}.target_layers", {}); }},
    {"layer id 9", [](Parts & p) { p.ids("{arch}.target_layers", {1, 3, 9}); }},
    without("{arch}.norm_output", "norm_output"),
    with("{arch}.rope.type", "spiral", "rope.type"),
    with("{arch}.rope.scaling.type", "cubic", "rope.scaling.type"),
    {"layer_norm_rms_epsilon", [](Parts & p) { p.f32("{arch}.attention.layer_norm_rms_epsilon", NAN); }},
    without_tensor("fc.weight", "missing tensor 'fc.weight'"),
    with_tensor("surprise.weight", "unknown tensor 'surprise.weight'"),
    {"'output_norm.weight' has shape", [](Parts & p) { ++p.tensor("output_norm.weight").ne[0]; }},
    {"'output_norm.weight' has shape [64, 1, 2], expected [64]",
     [](Parts & p) { p.tensor("output_norm.weight").ne = {n_embd, 1, 2}; }},
    {"'output_norm.weight' has type", [](Parts & p) { p.tensor("output_norm.weight").type = GGML_TYPE_Q8_0; }},
    {"'d2t'", [](Parts & p) { p.type_d2t = GGML_TYPE_I32; }},
    {"entry 3 is 99", [](Parts & p) { p.d2t[3] = 99; }},
    {"entry 3 is 0", [](Parts & p) { p.d2t[3] = 0; }},
    {"tokenizer has 5 tokens", [](Parts & p) { p.tokens(5); }},
    {"truncated",
     {},
     [](const std::string & path) { std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100); }},
    {"header", {}, [](const std::string & path) { std::filesystem::resize_file(path, 300); }},
    {"the file is empty", {}, [](const std::string & path) { std::filesystem::resize_file(path, 0); }},
    {"not a GGUF file", {}, [](const std::string & path) { std::ofstream(path) << "PK\3\4 this is a zip file"; }},
};

const std::vector<Flaw> of_eagle = {
    {"missing tensor 'blk.0.attn_norm.weight'", [](Parts & p) { p.flag("{arch}.norm_output", true); }},
    with("{arch}.target_hidden_size", n_embd / 2u, "must be equal in an EAGLE-1"),
    {"expected only layer id 7", [](Parts & p) { p.ids("{arch}.target_layers", {9}); }},
    with_tensor("blk.0.attn_norm.weight", "unknown tensor 'blk.0.attn_norm.weight'"),
    with("{arch}.attention.kv_lora_rank", (uint32_t)kv_rank, "latent attention is not supported"),
};

const std::vector<Flaw> of_latent = {
    with("{arch}.attention.head_count_kv", 2u, "expected 1 kv head"),
    with("{arch}.attention.key_length", kv_rank + rope_dim - 2u, "rows of 192"),
    without("{arch}.attention.scale", "attention.scale"),
    {"attention.scale", [](Parts & p) { p.f32("{arch}.attention.scale", 0.0f); }},
    with("{arch}.rope.type", "neox", "rope.type"),
    {"value_norm", [](Parts & p) { p.flag("{arch}.attention.value_norm", true); }},
    without_tensor("blk.0.attn_v_b.weight", "missing tensor 'blk.0.attn_v_b.weight'"),
    with_tensor("blk.0.attn_kv_b.weight", "unknown tensor 'blk.0.attn_kv_b.weight'"),
    {"'blk.0.attn_k_b.weight' has shape",
     [](Parts & p) { p.tensor("blk.0.attn_k_b.weight").ne = {kv_rank, nope_dim, n_head}; }},
};

const std::vector<Flaw> of_dspark = {
    with("{arch}.block_size", 0u, "block_size"),
    without("{arch}.block_size", "block_size"),
    without("tokenizer.ggml.mask_token_id", "mask_token_id"),
    with("tokenizer.ggml.mask_token_id", 20u, "token 20 is outside the vocabulary of 20 tokens"),
    {"'markov_w1.weight' has shape", [](Parts & p) { p.tensor("markov_w1.weight").ne[1] = 19; }},
    {"'markov_w2.weight' has shape", [](Parts & p) { p.tensor("markov_w2.weight").ne = {n_rank + 1, n_draft_vocab}; }},
    without_tensor("markov_w2.weight", "missing tensor 'markov_w2.weight'"),
    without_tensor("enc.output_norm.weight", "missing tensor 'enc.output_norm.weight'"),
    without_tensor("blk.0.attn_v.weight", "missing tensor 'blk.0.attn_v.weight'"),
    with_tensor("blk.0.attn_sinks.weight", "tensor 'blk.0.attn_sinks.weight' has shape"),
    with_tensor("blk.0.attn_norm_2.weight", "unknown tensor 'blk.0.attn_norm_2.weight'"),
    {"value_scale", [](Parts & p) { p.f32("{arch}.attention.value_scale", -0.5f); }},
    with("{arch}.hidden_activation", "relu", "hidden_activation"),
    {"norm_before_fc", [](Parts & p) { p.flag("{arch}.norm_before_fc", true); }},
};

const std::vector<Flaw> of_dflash2 = {
    with("{arch}.block_size", 1u, "2 or more rows"),
    without("{arch}.sample_from_anchor", "sample_from_anchor"),
    {"selector_top_k", [](Parts & p) { p.flag("{arch}.sample_from_anchor", true); }},
    with("{arch}.selector_top_k", 9u, "found 9"),
    without("{arch}.selector_rank", "selector_rank"),
    with("{arch}.selector_rank", 9u, "has shape"),
    with("{arch}.conv_group_size", 7u, "conv_group_size"),
    with("{arch}.conv_kernel_size", 6u, "6 convolution taps"),
    without_tensor("blk.0.ffn_conv_proj.weight", "missing tensor 'blk.0.ffn_conv_proj.weight'"),
    {"causal_pattern",
     [](Parts & p) {
         const uint8_t two[] = {1, 0};
         gguf_set_arr_data(p.gguf.get(), p.key("{arch}.attention.causal_pattern").c_str(), GGUF_TYPE_BOOL, two, 2);
     }},
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
