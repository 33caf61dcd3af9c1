// SPDX-License-Identifier: MIT
#include "draft_files.h"

#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "gguf/draft_file.h"
#include "gguf/keys.h"

namespace eaglecpp {

const std::vector<std::pair<Flaw, const char *>> all_flaws = {
    {Flaw::wrong_architecture, "general.architecture"},
    {Flaw::missing_size, "block_count"},
    {Flaw::wrong_key_type, "embedding_length"},
    {Flaw::negative_size, "feed_forward_length"},
    {Flaw::zero_heads, "head_count"},
    {Flaw::odd_head_dim, "do not go together"},
    {Flaw::huge_width, "embedding_length"},
    {Flaw::no_target_layers, "target_layers"},
    {Flaw::layer_beyond_target, "layer id 9"},
    {Flaw::missing_switch, "norm_output"},
    {Flaw::unknown_rope_type, "rope.type"},
    {Flaw::unknown_scaling, "rope.scaling.type"},
    {Flaw::nan_epsilon, "layer_norm_rms_epsilon"},
    {Flaw::missing_tensor, "missing tensor 'fc.weight'"},
    {Flaw::unknown_tensor, "unknown tensor 'surprise.weight'"},
    {Flaw::wrong_shape, "'output_norm.weight' has shape"},
    {Flaw::quantised_norm, "'output_norm.weight' has type"},
    {Flaw::d2t_wrong_type, "'d2t'"},
    {Flaw::d2t_out_of_range, "entry 3 is 99"},
    {Flaw::d2t_duplicate, "entry 3 is 0"},
    {Flaw::short_tokenizer, "tokenizer has 5 tokens"},
    {Flaw::truncated_data, "truncated"},
    {Flaw::truncated_header, "header"},
    {Flaw::not_gguf, "not a GGUF file"},
};

const std::vector<std::pair<Flaw, const char *>> eagle_flaws = {
    {Flaw::narrow_target, "as wide as its target"},
    {Flaw::layer_beyond_target, "expected the one id 7"},
    {Flaw::no_target_layers, "target_layers"},
    {Flaw::norm_it_has_not, "unknown tensor 'blk.0.attn_norm.weight'"},
    {Flaw::written_by_a_fork, "written by a fork"},
    {Flaw::latents_in_eagle_1, "with latent attention is not supported"},
    {Flaw::missing_switch, "norm_output"},
    {Flaw::missing_tensor, "missing tensor 'fc.weight'"},
    {Flaw::d2t_out_of_range, "entry 3 is 99"},
};

const std::vector<std::pair<Flaw, const char *>> latent_flaws = {
    {Flaw::several_kv_heads, "expected 1 kv head"},
    {Flaw::short_row, "rows of 20"},
    {Flaw::no_scale, "attention.scale"},
    {Flaw::zero_scale, "attention.scale"},
    {Flaw::no_key_length, "key_length_mla"},
    {Flaw::rotated_halves, "rope.type"},
    {Flaw::normed_latent_values, "value_norm"},
    {Flaw::no_values, "missing tensor 'blk.0.attn_v_b.weight'"},
    {Flaw::whole_kv_b, "unknown tensor 'blk.0.attn_kv_b.weight'"},
    {Flaw::keys_not_transposed, "'blk.0.attn_k_b.weight' has shape"},
    {Flaw::unknown_rope_type, "rope.type"},
    {Flaw::missing_switch, "norm_output"},
};

namespace {

constexpr int n_embd = 32, n_ff = 48, n_head = 2, n_head_kv = 1, head_dim = 16, n_vocab = 20, n_draft_vocab = 8,
              n_aux = 3, n_layer_target = 6;
constexpr int kv_rank = 16, q_rank = 24, nope_dim = 12, rope_dim = 4, value_dim = 10;

class Writer {
  public:
    Writer(Kind kind, Flaw flaw)
        : arch_(kind == Kind::eagle    ? keys::arch_eagle
                : kind == Kind::eagle3 ? keys::arch_eagle3
                                       : keys::arch_eagle31),
          flaw_(flaw),
          fuses_embedding_(kind == Kind::eagle),
          is_latent_(kind == Kind::latent) {
        gguf_.reset(gguf_init_empty());
        ctx_.reset(ggml_init({16 << 20, nullptr, false}));
        set_keys(kind);
        add_tensors(kind);
    }

    void write(const std::string & path) { gguf_write_to_file(gguf_.get(), path.c_str(), false); }

  private:
    std::string key(const char * pattern) { return fill(pattern, arch_); }
    void u32(const char * pattern, uint32_t v) { gguf_set_val_u32(gguf_.get(), key(pattern).c_str(), v); }
    void f32(const char * pattern, float v) { gguf_set_val_f32(gguf_.get(), key(pattern).c_str(), v); }
    void flag(const char * pattern, bool v) { gguf_set_val_bool(gguf_.get(), key(pattern).c_str(), v); }
    void str(const char * pattern, const char * v) { gguf_set_val_str(gguf_.get(), key(pattern).c_str(), v); }
    bool is(Flaw flaw) const { return flaw_ == flaw; }
    static bool has_fc_norm(Kind kind) { return kind == Kind::eagle31 || kind == Kind::latent; }

    void set_keys(Kind kind) {
        gguf_set_val_str(gguf_.get(), keys::architecture, is(Flaw::wrong_architecture) ? "llama" : arch_.c_str());
        gguf_set_val_str(gguf_.get(), keys::name, "tiny");
        if (!is(Flaw::missing_size)) u32(keys::block_count, 1);
        u32(keys::context_length, 128);
        if (is(Flaw::wrong_key_type)) {
            str(keys::embedding_length, "32");
        } else {
            u32(keys::embedding_length, is(Flaw::huge_width) ? 0x7fffffff : n_embd);
        }
        if (is(Flaw::negative_size)) {
            gguf_set_val_i32(gguf_.get(), key(keys::feed_forward_length).c_str(), -48);
        } else {
            u32(keys::feed_forward_length, n_ff);
        }
        u32(keys::head_count, is(Flaw::zero_heads) ? 0 : n_head);
        if (is_latent_) {
            set_latent_keys();
        } else {
            u32(keys::head_count_kv, n_head_kv);
            u32(keys::key_length, is(Flaw::odd_head_dim) ? 15 : head_dim);
            if (is(Flaw::odd_head_dim)) u32(keys::value_length, 15);
        }
        if (is(Flaw::latents_in_eagle_1)) u32(keys::kv_lora_rank, kv_rank);
        if (is(Flaw::normed_latent_values)) flag(keys::value_norm, true);
        u32(keys::vocab_size, n_vocab);
        f32(keys::rms_epsilon, is(Flaw::nan_epsilon) ? NAN : 1e-5f);
        f32(keys::rope_freq_base, 10000.0f);
        if (is(Flaw::unknown_scaling)) str(keys::rope_scaling_type, "cubic");
        const int32_t last = fuses_embedding_ ? n_layer_target + 1 : 5;
        const int32_t layers[] = {1, 3, is(Flaw::layer_beyond_target) ? 9 : last};
        const int n_layers = is(Flaw::no_target_layers) ? 0 : (fuses_embedding_ ? 1 : n_aux);
        const char * ids = is(Flaw::written_by_a_fork) ? "{arch}.extract_layers" : keys::target_layers;
        gguf_set_arr_data(gguf_.get(), key(ids).c_str(), GGUF_TYPE_INT32, layers + n_aux - n_layers, n_layers);
        u32(keys::target_hidden_size, is(Flaw::narrow_target) ? n_embd / 2 : n_embd);
        gguf_set_val_u32(gguf_.get(), keys::target_block_count, n_layer_target);
        if (has_fc_norm(kind)) flag(keys::fc_norm, true);
        if (kind != Kind::eagle3) {
            if (!is(Flaw::missing_switch)) flag(keys::norm_output, !fuses_embedding_);
            str(keys::rope_type, is(Flaw::unknown_rope_type) ? "spiral" : (is(Flaw::rotated_halves) ? "neox" : "norm"));
            u32(keys::draft_vocab_size, n_draft_vocab);
        }
        std::vector<std::string> texts;
        for (int i = 0; i < (is(Flaw::short_tokenizer) ? 5 : n_vocab); ++i) texts.push_back("t" + std::to_string(i));
        std::vector<const char *> pointers;
        for (const auto & t : texts) pointers.push_back(t.c_str());
        gguf_set_arr_str(gguf_.get(), keys::tokenizer_tokens, pointers.data(), pointers.size());
    }

    void set_latent_keys() {
        u32(keys::head_count_kv, is(Flaw::several_kv_heads) ? 2 : 1);
        u32(keys::key_length, kv_rank + rope_dim - (is(Flaw::short_row) ? 2 : 0));
        u32(keys::value_length, kv_rank);
        u32(keys::kv_lora_rank, kv_rank);
        u32(keys::q_lora_rank, q_rank);
        if (!is(Flaw::no_key_length)) u32(keys::key_length_mla, nope_dim + rope_dim);
        u32(keys::value_length_mla, value_dim);
        u32(keys::rope_dimension_count, rope_dim);
        if (!is(Flaw::no_scale)) f32(keys::attention_scale, is(Flaw::zero_scale) ? 0.0f : 0.25f);
    }

    void tensor(const std::string & name, std::initializer_list<int64_t> ne, ggml_type type = GGML_TYPE_F32) {
        ggml_tensor * t = ggml_new_tensor(ctx_.get(), type, (int)ne.size(), ne.begin());
        ggml_set_name(t, name.c_str());
        auto * bytes = (uint8_t *)t->data;
        for (size_t i = 0; i < ggml_nbytes(t); ++i) bytes[i] = (uint8_t)(i * 31 % 7);
        gguf_add_tensor(gguf_.get(), t);
    }

    void add_tensors(Kind kind) {
        const int n_in = fuses_embedding_ ? n_embd : 2 * n_embd;
        if (!is(Flaw::missing_tensor)) tensor(keys::t_fc, {(fuses_embedding_ ? 2 : n_aux) * n_embd, n_embd});
        for (int i = 0; has_fc_norm(kind) && i < n_aux; ++i) tensor(fill(keys::t_fc_norm, i), {n_embd});
        if (!fuses_embedding_) {
            tensor(keys::t_output_norm, {is(Flaw::wrong_shape) ? n_embd + 1 : n_embd},
                   is(Flaw::quantised_norm) ? GGML_TYPE_Q8_0 : GGML_TYPE_F32);
        }
        tensor(keys::t_output, {n_embd, n_draft_vocab});
        if (!fuses_embedding_ || is(Flaw::norm_it_has_not)) tensor(fill(keys::t_attn_norm, 0), {n_embd});
        if (!fuses_embedding_) tensor(fill(keys::t_attn_norm_2, 0), {n_embd});
        if (is_latent_) {
            add_latent_tensors();
        } else {
            tensor(fill(keys::t_attn_q, 0), {n_in, n_head * head_dim});
            tensor(fill(keys::t_attn_k, 0), {n_in, n_head_kv * head_dim});
            tensor(fill(keys::t_attn_v, 0), {n_in, n_head_kv * head_dim});
            tensor(fill(keys::t_attn_output, 0), {n_head * head_dim, n_embd});
        }
        tensor(fill(keys::t_ffn_norm, 0), {n_embd});
        tensor(fill(keys::t_ffn_gate, 0), {n_embd, n_ff});
        tensor(fill(keys::t_ffn_up, 0), {n_embd, n_ff});
        tensor(fill(keys::t_ffn_down, 0), {n_ff, n_embd});
        if (is(Flaw::unknown_tensor)) tensor("surprise.weight", {4});
        ggml_tensor * d2t =
            ggml_new_tensor_1d(ctx_.get(), is(Flaw::d2t_wrong_type) ? GGML_TYPE_I32 : GGML_TYPE_I64, n_draft_vocab);
        ggml_set_name(d2t, keys::t_d2t);
        for (int i = 0; i < n_draft_vocab && d2t->type == GGML_TYPE_I64; ++i) ((int64_t *)d2t->data)[i] = 2 * i;
        if (is(Flaw::d2t_out_of_range)) ((int64_t *)d2t->data)[3] = 99;
        if (is(Flaw::d2t_duplicate)) ((int64_t *)d2t->data)[3] = 0;
        gguf_add_tensor(gguf_.get(), d2t);
    }

    void add_latent_tensors() {
        tensor(fill(keys::t_attn_q_a, 0), {2 * n_embd, q_rank});
        tensor(fill(keys::t_attn_q_a_norm, 0), {q_rank});
        tensor(fill(keys::t_attn_q_b, 0), {q_rank, n_head * (nope_dim + rope_dim)});
        tensor(fill(keys::t_attn_kv_a_mqa, 0), {2 * n_embd, kv_rank + rope_dim});
        tensor(fill(keys::t_attn_kv_a_norm, 0), {kv_rank});
        if (is(Flaw::keys_not_transposed)) {
            tensor(fill(keys::t_attn_k_b, 0), {kv_rank, nope_dim, n_head});
        } else {
            tensor(fill(keys::t_attn_k_b, 0), {nope_dim, kv_rank, n_head});
        }
        if (!is(Flaw::no_values)) tensor(fill(keys::t_attn_v_b, 0), {kv_rank, value_dim, n_head});
        if (is(Flaw::whole_kv_b)) tensor("blk.0.attn_kv_b.weight", {kv_rank, n_head * (nope_dim + value_dim)});
        tensor(fill(keys::t_attn_output, 0), {n_head * value_dim, n_embd});
    }

    std::string arch_;
    Flaw flaw_;
    bool fuses_embedding_;
    bool is_latent_;
    gguf_context_ptr gguf_;
    ggml_context_ptr ctx_;
};

}  // namespace

void write_draft_file(const std::string & path, Kind kind, Flaw flaw) {
    Writer(kind, flaw).write(path);
    const auto size = std::filesystem::file_size(path);
    if (flaw == Flaw::truncated_data) std::filesystem::resize_file(path, size - 100);
    if (flaw == Flaw::truncated_header) std::filesystem::resize_file(path, 300);
    if (flaw == Flaw::not_gguf) std::ofstream(path, std::ios::binary) << "PK\3\4 this is a zip file, more or less";
}

}  // namespace eaglecpp
