// SPDX-License-Identifier: MIT
#include "draft/weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "gguf/keys.h"
#include "kernels/hook.h"

namespace eaglecpp {

EmbeddingTable::EmbeddingTable(ggml_type type, int n_embd, int n_rows) : type_(type), n_embd_(n_embd), n_rows_(n_rows) {
    if (!is_weight_type(type)) {
        fail(ErrorKind::unsupported,
             "the token embeddings have type %s, which ggml cannot dequantise; expected one like "
             "f16 or q8_0: convert the model again",
             ggml_type_name(type));
    }
}

EmbeddingTable EmbeddingTable::from_bytes(std::vector<uint8_t> data, ggml_type type, int n_embd, int n_rows) {
    EmbeddingTable t(type, n_embd, n_rows);
    t.own_ = std::move(data);
    return t;
}

EmbeddingTable EmbeddingTable::from_tensor(const ggml_tensor * tensor) {
    EmbeddingTable t(tensor->type, (int)tensor->ne[0], (int)tensor->ne[1]);
    t.tensor_ = tensor;
    return t;
}

const uint8_t * EmbeddingTable::stored_row(int id) const {
    if (id < 0 || id >= n_rows_) fail(ErrorKind::value, "token id %d is outside the vocabulary of %d", id, n_rows_);
    return tensor_ ? (const uint8_t *)tensor_->data + (size_t)id * tensor_->nb[1]
                   : own_.data() + (size_t)id * n_row_bytes();
}

void EmbeddingTable::row(int id, float * dst) const {
    const uint8_t * src = stored_row(id);
    if (type_ == GGML_TYPE_F32) {
        std::memcpy(dst, src, n_row_bytes());
    } else {
        ggml_get_type_traits(type_)->to_float(src, dst, n_embd_);
    }
}

namespace {

class Loader {
  public:
    Loader(const DraftFile & file, bool use_kernels, DraftWeights & out)
        : file_(file), use_kernels_(use_kernels), out_(out) {
        const size_t n = file.gguf().tensors().size();
        for (ggml_context_ptr * ctx : {&out.ctx, &out.packed_ctx}) {
            ctx->reset(ggml_init({ggml_tensor_overhead() * (n + 1), nullptr, /*no_alloc=*/true}));
        }
    }

    // declares the tensor in a context; nullptr when the file does not have it (checked by DraftFile)
    ggml_tensor * want(const std::string & name, bool is_matrix = false) {
        const TensorInfo * info = file_.gguf().find_tensor(name);
        if (!info) return nullptr;
        const bool is_packed = is_matrix && use_kernels_ && kernels::can_hold(info->type, info->ne[0]);
        ggml_context * ctx = (is_packed ? out_.packed_ctx : out_.ctx).get();
        ggml_tensor * t = ggml_new_tensor(ctx, info->type, GGML_MAX_DIMS, info->ne.data());
        ggml_set_name(t, name.c_str());
        wanted_.push_back({info, t, is_packed});
        return t;
    }
    ggml_tensor * matrix(const std::string & name) { return want(name, /*is_matrix=*/true); }

    void read_all(ggml_backend_buffer_type_t buft) {
        out_.buffer = allocate(out_.ctx.get(), buft);
        if (ggml_get_first_tensor(out_.packed_ctx.get())) {
            out_.packed_buffer = allocate(out_.packed_ctx.get(), kernels::weights_buffer_type());
        }
        std::vector<uint8_t> chunk;
        for (const auto & [info, tensor, is_packed] : wanted_) {
            // packed matrices can only be written as a whole
            const uint64_t n_chunk = is_packed ? info->n_bytes : 16 << 20;
            for (uint64_t at = 0; at < info->n_bytes; at += n_chunk) {
                chunk.resize(std::min(n_chunk, info->n_bytes - at));
                file_.gguf().read(*info, at, chunk.data(), chunk.size());
                ggml_backend_tensor_set(tensor, chunk.data(), at, chunk.size());
            }
        }
    }

  private:
    struct Wanted {
        const TensorInfo * info;
        ggml_tensor * tensor;
        bool is_packed;
    };

    ggml_backend_buffer_ptr allocate(ggml_context * ctx, ggml_backend_buffer_type_t buft) const {
        ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft));
        if (!buffer) {
            fail(ErrorKind::out_of_memory, "%s: no room for the drafter's weights in %s memory", file_.path().c_str(),
                 ggml_backend_buft_name(buft));
        }
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        return buffer;
    }

    const DraftFile & file_;
    const bool use_kernels_;
    DraftWeights & out_;
    std::vector<Wanted> wanted_;
};

}  // namespace

DraftWeights DraftWeights::load(const DraftFile & file, ggml_backend_buffer_type_t buft, bool use_kernels) {
    const DraftSpec & s = file.spec();
    DraftWeights w;
    Loader loader(file, use_kernels, w);
    w.fc = loader.matrix(keys::t_fc);
    w.fc_bias = loader.want(keys::t_fc_bias);
    for (int i = 0; s.fc_norm && i < s.n_aux(); ++i) w.fc_norm.push_back(loader.want(fill(keys::t_fc_norm, i)));
    if (s.norm_before_fc) w.input_norm = loader.want(keys::t_enc_output_norm);
    w.output_norm = loader.want(keys::t_output_norm);
    w.head = loader.matrix(keys::t_output);
    w.rope_freqs = loader.want(keys::t_rope_freqs);
    for (int i = 0; i < s.n_layer; ++i) {
        const auto want = [&](const char * pattern) { return loader.want(fill(pattern, i)); };
        const auto matrix = [&](const char * pattern) { return loader.matrix(fill(pattern, i)); };
        DraftLayer l;
        l.attn_norm = want(keys::t_attn_norm);
        if (i == 0) l.attn_norm_2 = want(keys::t_attn_norm_2);
        l.wq = matrix(keys::t_attn_q), l.bq = want(keys::t_attn_q_bias), l.q_norm = want(keys::t_attn_q_norm);
        l.wk = matrix(keys::t_attn_k), l.bk = want(keys::t_attn_k_bias), l.k_norm = want(keys::t_attn_k_norm);
        l.wv = matrix(keys::t_attn_v), l.bv = want(keys::t_attn_v_bias);
        l.wq_a = matrix(keys::t_attn_q_a), l.q_a_norm = want(keys::t_attn_q_a_norm), l.wq_b = matrix(keys::t_attn_q_b);
        l.wkv_a = matrix(keys::t_attn_kv_a_mqa), l.kv_a_norm = want(keys::t_attn_kv_a_norm);
        l.wk_b = want(keys::t_attn_k_b), l.wv_b = want(keys::t_attn_v_b);  // one per head: our kernels take one
        l.wo = matrix(keys::t_attn_output), l.bo = want(keys::t_attn_output_bias);
        l.ffn_norm = want(keys::t_ffn_norm);
        l.post_attn_norm = want(keys::t_post_attn_norm), l.post_ffn_norm = want(keys::t_post_ffn_norm);
        l.gate = matrix(keys::t_ffn_gate), l.gate_b = want(keys::t_ffn_gate_bias);
        l.up = matrix(keys::t_ffn_up), l.up_b = want(keys::t_ffn_up_bias);
        l.down = matrix(keys::t_ffn_down), l.down_b = want(keys::t_ffn_down_bias);
        w.layers.push_back(l);
    }
    loader.read_all(buft);
    if (s.is_parallel()) {
        const TensorInfo & info = *file.gguf().find_tensor(keys::t_mask_feature);
        w.mask_feature.resize(info.n_bytes / sizeof(float));
        file.gguf().read(info, 0, (uint8_t *)w.mask_feature.data(), info.n_bytes);
    }
    if (const TensorInfo * info = file.gguf().find_tensor(keys::t_token_embd)) {
        std::vector<uint8_t> data(info->n_bytes);
        file.gguf().read(*info, 0, data.data(), data.size());
        w.embedding = EmbeddingTable::from_bytes(std::move(data), info->type, s.n_embd, s.n_vocab);
    }
    return w;
}

}  // namespace eaglecpp
