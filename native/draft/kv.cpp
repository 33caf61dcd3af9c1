// SPDX-License-Identifier: MIT
#include "draft/kv.h"

#include "base/error.h"

namespace eaglecpp {

DraftKv::DraftKv(const DraftSpec & spec, int n_ctx, int n_draft_rows_max, ggml_type type,
                 ggml_backend_buffer_type_t buft, bool keeps_states)
    : n_ctx_(n_ctx), n_draft_rows_max_(n_draft_rows_max), n_slots_(pad(n_ctx + n_draft_rows_max + 1)) {
    ctx_.reset(ggml_init({ggml_tensor_overhead() * (2 * spec.n_layer + 2), nullptr, /*no_alloc=*/true}));
    const int64_t n_k = (int64_t)spec.key_dim() * spec.n_head_kv, n_v = (int64_t)spec.value_dim() * spec.n_head_kv;
    for (int i = 0; i < spec.n_layer; ++i) {
        k_.push_back(ggml_new_tensor_2d(ctx_.get(), type, n_k, n_slots_));
        if (!spec.has_latent()) v_.push_back(ggml_new_tensor_2d(ctx_.get(), type, n_v, n_slots_));
    }
    const int64_t n_state = spec.is_block() ? spec.n_draft_vocab : spec.n_embd;
    const int64_t n_states = spec.is_block() ? spec.block.n_slots() + 1 : 2 + (int64_t)n_draft_rows_max;
    if (keeps_states) state_ = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, n_state, n_states);
    if (!buft) return;
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), buft));
    fail_if(!buffer_, ErrorKind::out_of_memory, "no room for the drafter's key/value cache of %d tokens in %s memory",
            n_ctx, ggml_backend_buft_name(buft));
    clear();
}

template <typename F>
void DraftKv::each_tensor(F && f) const {
    for (size_t il = 0; il < k_.size(); ++il) {
        f(k_[il]);
        if (!v_.empty()) f(v_[il]);
    }
}

size_t DraftKv::n_bytes_of(int n) const {
    size_t n_bytes = 0;
    each_tensor([&](const ggml_tensor * t) { n_bytes += n * t->nb[1]; });
    return n_bytes;
}

void DraftKv::save_rows(int n, std::vector<uint8_t> & out) const {
    out.resize(out.size() + n_bytes_of(n));
    uint8_t * at = out.data() + out.size() - n_bytes_of(n);
    each_tensor([&](const ggml_tensor * t) {
        ggml_backend_tensor_get(t, at, 0, n * t->nb[1]);
        at += n * t->nb[1];
    });
}

void DraftKv::load_rows(ByteView bytes, int n) {
    const uint8_t * at = bytes.data;
    each_tensor([&](ggml_tensor * t) {
        ggml_backend_tensor_set(t, at, 0, n * t->nb[1]);
        at += n * t->nb[1];
    });
    n_rows = n;
}

void DraftKv::clear() {
    n_rows = 0;
    // Graphs read slots after the written rows under a mask of -inf. So these slots must hold finite numbers.
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

}  // namespace eaglecpp
