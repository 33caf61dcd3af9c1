// SPDX-License-Identifier: MIT
#include "draft/weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ggml_hook/hook.h"

namespace eaglecpp {

EmbeddingTable::EmbeddingTable(std::vector<uint8_t> data, ggml_type type, int n_embd, int n_rows)
    : own_(std::move(data)), type_(type), n_embd_(n_embd), n_rows_(n_rows) {
    fail_if(!is_weight_type(type), ErrorKind::unsupported,
            "the token embeddings have type %s, which ggml cannot dequantise; convert the model again with a type such "
            "as f16 or q8_0",
            ggml_type_name(type));
}

EmbeddingTable::EmbeddingTable(const ggml_tensor * tensor)
    : EmbeddingTable({}, tensor->type, (int)tensor->ne[0], (int)tensor->ne[1]) {
    tensor_ = tensor;
}

const uint8_t * EmbeddingTable::stored_row(int id) const {
    fail_if(id < 0 || id >= n_rows_, ErrorKind::value, "token id %d is outside the vocabulary of %d tokens", id,
            n_rows_);
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

ggml_tensor * OwnMatrix::make(ggml_backend_buffer_type_t buft, ggml_type type, int64_t n, int64_t n_rows) {
    ctx.reset(ggml_init({2 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    ggml_tensor * t = ggml_new_tensor_2d(ctx.get(), type, n, n_rows);
    buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft));
    return buffer ? t : nullptr;
}

ggml_tensor * DraftWeights::find(const std::string & name) const {
    for (const ggml_context_ptr * of : {&ctx, &packed_ctx}) {
        if (ggml_tensor * t = *of ? ggml_get_tensor(of->get(), name.c_str()) : nullptr) return t;
    }
    return nullptr;
}

static ggml_backend_buffer_ptr allocate(const DraftFile & file, ggml_context * ctx, ggml_backend_buffer_type_t buft) {
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft));
    fail_if(!buffer, ErrorKind::out_of_memory, "%s: no room for the drafter's weights in %s memory",
            file.path().c_str(), ggml_backend_buft_name(buft));
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    return buffer;
}

DraftWeights DraftWeights::load(const DraftFile & file, ggml_backend_buffer_type_t buft, bool use_kernels,
                                bool is_remote) {
    const DraftSpec & s = file.spec();
    const GgufReader & gguf = file.gguf();
    DraftWeights w;
    for (ggml_context_ptr * ctx : {&w.ctx, &w.packed_ctx}) {
        ctx->reset(ggml_init({ggml_tensor_overhead() * (gguf.tensors().size() + 1), nullptr, /*no_alloc=*/true}));
    }
    std::vector<const TensorInfo *> on_device;
    for (const auto & [name, wanted] : file.tensors()) {
        const TensorInfo * info = gguf.find_tensor(name);
        if (!info) continue;
        if (wanted.table && (is_remote || wanted.table != &DraftWeights::after || !wanted.is_on_device)) {
            std::vector<uint8_t> data(info->n_bytes);
            gguf.read(*info, 0, data.data(), data.size());
            w.*wanted.table = EmbeddingTable(std::move(data), info->type, (int)info->ne[0], (int)info->ne[1]);
        }
        if (!wanted.is_on_device) continue;
        on_device.push_back(info);
        // Excludes matrices with one part per head (latent attention), because our kernels need single matrices.
        const bool is_matrix = info->ne[1] > 1 && info->ne[2] == 1 && !(s.has_latent() && s.n_head == 1);
        const bool is_packed = is_matrix && use_kernels && kernels::can_hold(info->type, info->ne[0]);
        ggml_context * ctx = (is_packed ? w.packed_ctx : w.ctx).get();
        ggml_set_name(ggml_new_tensor(ctx, info->type, GGML_MAX_DIMS, info->ne.data()), info->name.c_str());
    }
    w.buffer = allocate(file, w.ctx.get(), buft);
    const bool has_packed = ggml_get_first_tensor(w.packed_ctx.get()) != nullptr;
    if (has_packed) w.packed_buffer = allocate(file, w.packed_ctx.get(), kernels::weights_buffer_type());
    std::vector<uint8_t> chunk;
    for (const TensorInfo * info : on_device) {
        ggml_tensor * t = w.find(info->name);
        // A packed matrix can only be written as a whole.
        const uint64_t n_chunk = t->buffer == w.packed_buffer.get() ? info->n_bytes : 16 << 20;
        for (uint64_t at = 0; at < info->n_bytes; at += n_chunk) {
            chunk.resize(std::min(n_chunk, info->n_bytes - at));
            gguf.read(*info, at, chunk.data(), chunk.size());
            ggml_backend_tensor_set(t, chunk.data(), at, chunk.size());
        }
    }
    return w;
}

}  // namespace eaglecpp
