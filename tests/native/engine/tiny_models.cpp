// SPDX-License-Identifier: MIT
#include "tiny_models.h"

#include <ggml-cpp.h>
#include <gguf.h>

#include <cmath>
#include <random>

#include "../gguf/draft_files.h"
#include "gguf/guard.h"

namespace eaglecpp::test {

namespace {

// The sizes are the same as in gguf/draft_files.cpp, so that the drafters fit.
constexpr int n_embd = 64, n_ff = 96, n_head = 4, n_head_kv = 1, head_dim = 16, n_layer = 6;

class Writer {
  public:
    explicit Writer(const TinyTarget & shape) : shape_(shape), n_vocab_(shape.n_vocab) {
        gguf_.reset(gguf_init_empty());
        ctx_.reset(ggml_init({16 << 20, nullptr, false}));
        set_keys();
        add_tensors();
    }

    void write(const std::string & path) { gguf_write_to_file(gguf_.get(), path.c_str(), false); }

  private:
    void u32(const std::string & key, uint32_t v) {
        gguf_set_val_u32(gguf_.get(), (shape_.architecture + "." + key).c_str(), v);
    }

    void set_keys() {
        gguf_context * g = gguf_.get();
        gguf_set_val_str(g, "general.architecture", shape_.architecture.c_str());
        u32("context_length", 256);
        u32("embedding_length", n_embd);
        u32("block_count", n_layer);
        u32("feed_forward_length", n_ff);
        u32("attention.head_count", n_head);
        u32("attention.head_count_kv", n_head_kv);
        u32("rope.dimension_count", head_dim);
        u32("vocab_size", n_vocab_);
        gguf_set_val_f32(g, (shape_.architecture + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5f);
        std::vector<std::string> texts;
        std::vector<const char *> pointers;
        for (int i = 0; i < n_vocab_; ++i) texts.push_back("t" + std::to_string(i));
        for (const auto & t : texts) pointers.push_back(t.c_str());
        const std::vector<float> scores(n_vocab_, 0.0f);
        const std::vector<int32_t> types(n_vocab_, 1);
        gguf_set_val_str(g, "tokenizer.ggml.model", "llama");
        gguf_set_arr_str(g, "tokenizer.ggml.tokens", pointers.data(), n_vocab_);
        gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), n_vocab_);
        gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), n_vocab_);
    }

    void tensor(const std::string & name, ggml_type type, int64_t ne0, int64_t ne1, float mean, float std) {
        ggml_tensor * t =
            ne1 > 0 ? ggml_new_tensor_2d(ctx_.get(), type, ne0, ne1) : ggml_new_tensor_1d(ctx_.get(), type, ne0);
        ggml_set_name(t, name.c_str());
        std::normal_distribution<float> normal(mean, std);
        std::vector<float> values(ggml_nelements(t));
        for (float & v : values) v = normal(random_);
        if (type == GGML_TYPE_F32) {
            std::copy(values.begin(), values.end(), (float *)t->data);
        } else if (const auto from_float = ggml_get_type_traits(type)->from_float_ref) {
            from_float(values.data(), t->data, (int64_t)values.size());
        }
        gguf_add_tensor(gguf_.get(), t);
    }

    void matrix(const std::string & name, int64_t n_in, int64_t n_out) {
        tensor(name, shape_.type, n_in, n_out, 0.0f, 1.0f / std::sqrt((float)n_in));
    }

    void norm(const std::string & name) { tensor(name, GGML_TYPE_F32, n_embd, 0, 1.0f, 0.1f); }

    void add_tensors() {
        tensor("token_embd.weight", shape_.type_embd, n_embd, n_vocab_, 0.0f, 1.0f);
        norm("output_norm.weight");
        if (!shape_.is_tied) matrix("output.weight", n_embd, n_vocab_);
        for (int i = 0; i < n_layer; ++i) {
            const std::string block = "blk." + std::to_string(i) + ".";
            norm(block + "attn_norm.weight");
            norm(block + "ffn_norm.weight");
            matrix(block + "attn_q.weight", n_embd, n_head * head_dim);
            matrix(block + "attn_k.weight", n_embd, n_head_kv * head_dim);
            matrix(block + "attn_v.weight", n_embd, n_head_kv * head_dim);
            matrix(block + "attn_output.weight", n_head * head_dim, n_embd);
            matrix(block + "ffn_gate.weight", n_embd, n_ff);
            matrix(block + "ffn_up.weight", n_embd, n_ff);
            matrix(block + "ffn_down.weight", n_ff, n_embd);
        }
    }

    const TinyTarget shape_;
    const int n_vocab_;
    gguf_context_ptr gguf_;
    ggml_context_ptr ctx_;
    std::mt19937 random_{7};
};

}  // namespace

Folder::Folder() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() / ("eaglecpp-test-" + std::to_string(random()));
    std::filesystem::create_directory(path_);
}

Folder::~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

void write_target(const std::string & path, const TinyTarget & shape) {
    Writer(shape).write(path);
}

TinyPair::TinyPair() {
    write_target(target);
    write_draft_file(draft, Kind::eagle31);
}

EngineOptions tiny_options(const std::string & target, const std::string & draft, int n_sequences) {
    EngineOptions o;
    o.n_sequences = n_sequences;
    o.path = target;
    o.draft_path = draft;
    o.draft_device = "cpu";
    o.n_ctx = 96;
    o.n_threads = 1;
    o.n_gpu_layers = 0;
    o.n_draft_max = 8;
    o.n_leaves_max = 4;
    return o;
}

GenerateParams greedy(const Strategy & strategy, int max_tokens) {
    GenerateParams p;
    p.sampling.temperature = 0.0f;
    p.strategy = strategy;
    p.max_tokens = max_tokens;
    p.ignore_eos = true;
    return p;
}

Tokens generate(Engine & engine, int id, const Tokens & prompt, const GenerateParams & params) {
    return guarded([&] {
        engine.begin(id, prompt, params);
        Tokens out;
        for (;;) {
            const std::vector<StepResult> results = engine.step({id});
            out.insert(out.end(), results[0].tokens.begin(), results[0].tokens.end());
            if (!results[0].finish.empty()) return out;
        }
    });
}

}  // namespace eaglecpp::test
