// SPDX-License-Identifier: MIT
#include "draft/kv.h"

#include "base/error.h"

namespace eaglecpp {

// values of a state, and how many there are
static std::pair<int64_t, int64_t> state_sizes(const DraftSpec & spec, int n_draft_rows_max) {
    if (!spec.is_block()) return {spec.n_embd, 2 + (int64_t)n_draft_rows_max};
    return {spec.block.markov_rank > 0 ? spec.n_draft_vocab : 1, spec.block.n_slots() + 1};
}

DraftKv::DraftKv(const DraftSpec & spec, int n_ctx, int n_draft_rows_max, ggml_type type, bool v_transposed,
                 ggml_backend_buffer_type_t buft)
    : n_ctx_(n_ctx),
      n_draft_rows_max_(n_draft_rows_max),
      v_transposed_(v_transposed),
      n_slots_(pad(n_ctx + n_draft_rows_max + 1)) {
    ctx_.reset(ggml_init({ggml_tensor_overhead() * (2 * spec.n_layer + 2), nullptr, /*no_alloc=*/true}));
    const int64_t n_k = (int64_t)spec.key_dim() * spec.n_head_kv, n_v = (int64_t)spec.value_dim() * spec.n_head_kv;
    for (int i = 0; i < spec.n_layer; ++i) {
        k_.push_back(ggml_new_tensor_2d(ctx_.get(), type, n_k, n_slots_));
        if (v_transposed) {
            v_.push_back(ggml_new_tensor_2d(ctx_.get(), type, n_slots_, n_v));
        } else {
            v_.push_back(spec.has_latent() ? nullptr : ggml_new_tensor_2d(ctx_.get(), type, n_v, n_slots_));
        }
    }
    const auto [n_state, n_states] = state_sizes(spec, n_draft_rows_max);
    state_ = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, n_state, n_states);
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), buft));
    if (!buffer_) {
        fail(ErrorKind::out_of_memory, "no room for the drafter's key/value cache of %d tokens in %s memory", n_ctx,
             ggml_backend_buft_name(buft));
    }
    clear();
}

// f(tensor, offset, size) for each piece of memory that the first n rows are
template <typename F>
void DraftKv::each_piece(int n, F && f) const {
    for (size_t il = 0; il < k_.size() && n > 0; ++il) {
        f(k_[il], 0, n * k_[il]->nb[1]);
        if (!v_[il]) continue;  // values that are a part of the keys' rows
        if (!v_transposed_) {
            f(v_[il], 0, n * v_[il]->nb[1]);
            continue;
        }
        for (int64_t row = 0; row < v_[il]->ne[1]; ++row) {
            f(v_[il], row * v_[il]->nb[1], ggml_row_size(v_[il]->type, n));
        }
    }
}

size_t DraftKv::n_bytes_of(int n) const {
    size_t n_bytes = 0;
    each_piece(n, [&](const ggml_tensor *, size_t, size_t size) { n_bytes += size; });
    return n_bytes;
}

std::vector<uint8_t> DraftKv::save_rows(int n) const {
    std::vector<uint8_t> bytes(n_bytes_of(n));
    uint8_t * at = bytes.data();
    each_piece(n, [&](const ggml_tensor * t, size_t offset, size_t size) {
        ggml_backend_tensor_get(t, at, offset, size);
        at += size;
    });
    return bytes;
}

void DraftKv::load_rows(const std::vector<uint8_t> & bytes, int n) {
    const uint8_t * at = bytes.data();
    each_piece(n, [&](ggml_tensor * t, size_t offset, size_t size) {
        ggml_backend_tensor_set(t, at, offset, size);
        at += size;
    });
    n_rows = n;
}

size_t DraftKv::n_bytes_for(const DraftSpec & spec, int n_ctx, int n_draft_rows_max, ggml_type type,
                            bool v_transposed) {
    const size_t n_slots = pad(n_ctx + n_draft_rows_max + 1);
    size_t n_row = ggml_row_size(type, (int64_t)spec.key_dim() * spec.n_head_kv);
    if (v_transposed || !spec.has_latent()) n_row += ggml_row_size(type, (int64_t)spec.value_dim() * spec.n_head_kv);
    const auto [n_state, n_states] = state_sizes(spec, n_draft_rows_max);
    return n_slots * n_row * spec.n_layer + sizeof(float) * n_state * n_states;
}

void DraftKv::clear() {
    n_rows = 0;
    // slots beyond the written rows are read under a -inf mask; they must hold finite numbers
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

}  // namespace eaglecpp
