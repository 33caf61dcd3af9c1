// SPDX-License-Identifier: MIT
#include "target/device_picks.h"

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include "base/error.h"
#include "gguf/guard.h"

namespace eaglecpp {

namespace {

// Adds the picks to the graph. Input: logits [n_vocab, n]. Results, row by row: the ids of the picked tokens and, if
// n_top > 1, their logits.
void pick(ggml_context * ctx, ggml_tensor * logits, DevicePicks::Kind & kind) {
    const int64_t n_vocab = logits->ne[0], n = logits->ne[1];
    if (kind.n_top == 1) {
        kind.ids = ggml_argmax(ctx, logits);
        return;
    }
    kind.ids = ggml_top_k(ctx, logits, kind.n_top);
    kind.logits = ggml_get_rows(ctx, ggml_reshape_3d(ctx, logits, 1, n_vocab, n), kind.ids);
}

// Returns the tensor with the logits of all rows, or null if the graph has another form. libllama passes a view of one
// row. The tensor behind this view has one row of padding.
ggml_tensor * all_logits(const ggml_tensor * row) {
    ggml_tensor * padded = row->view_src;
    if (!padded || padded->op != GGML_OP_PAD) return nullptr;
    ggml_tensor * all = padded->src[0];
    if (all->ne[1] == 0) return padded;  // no row has output; libllama calls all samplers for the padding row
    const bool is_plain = ggml_is_matrix(all) && ggml_is_contiguous(all) && all->ne[1] + 1 == padded->ne[1];
    return is_plain && all->ne[0] == row->ne[0] ? all : nullptr;
}

// Adds the picks for all rows at once. A view of one row is not used, because devices cannot bind memory at every
// offset.
void apply(llama_sampler * self, ggml_context * ctx, ggml_cgraph *, llama_sampler_data * data) {
    auto & kind = *(DevicePicks::Kind *)self->ctx;
    const ggml_tensor * row = data->logits;
    data->logits = data->candidates = nullptr;
    ggml_tensor * all = all_logits(row);
    if (!all) return;
    if (!kind.ids) pick(ctx, all, kind);
    const size_t at = row->view_offs / row->view_src->nb[1] * kind.n_top * sizeof(float);
    data->candidates = ggml_view_1d(ctx, kind.ids, kind.n_top, at);
    if (kind.logits) data->logits = ggml_view_1d(ctx, kind.logits, kind.n_top, at);
}

void forget(llama_sampler * self) {
    auto & kind = *(DevicePicks::Kind *)self->ctx;
    kind = {kind.n_top};
}

// Returns true if the device has all operations of picks. With a missing operation, libllama would return neither
// tokens nor logits.
bool has_operations(ggml_backend_dev_t device, int n_top) {
    DevicePicks::Kind kind{n_top};
    constexpr int64_t n_vocab = 128 * 1024;
    const ggml_context_ptr ctx(ggml_init({16 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    pick(ctx.get(), ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_vocab, 1), kind);
    for (const ggml_tensor * t : {kind.ids, kind.logits}) {
        // The tensor of ids may be the result of more than one operation.
        for (; t && t->op != GGML_OP_NONE; t = t->src[0]) {
            if (!ggml_backend_dev_supports_op(device, t)) return false;
        }
    }
    return true;
}

llama_sampler_ptr make_picker(DevicePicks::Kind & kind) {
    static llama_sampler_i picking = [] {
        llama_sampler_i out{};
        out.name = [](const llama_sampler *) { return "picks"; };
        out.apply = [](llama_sampler *, llama_token_data_array *) {};
        out.backend_init = [](llama_sampler *, ggml_backend_buffer_type_t, uint32_t) { return true; };
        out.backend_apply = apply;
        out.backend_reset = forget;
        return out;
    }();
    llama_sampler_ptr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), llama_sampler_init(&picking, &kind));
    return chain;
}

}  // namespace

DevicePicks::Kind * DevicePicks::kind(int n_top) {
    const auto [known, is_new] = kinds_.emplace(n_top, nullptr);
    if (!is_new || !device_ || n_top > n_vocab_) return known->second.get();
    if (guarded([&] { return has_operations(device_, n_top); })) known->second = std::make_unique<Kind>(Kind{n_top});
    return known->second.get();
}

bool DevicePicks::set(const SeqRange & range, int n_top) {
    Kind * kind = n_top > 0 ? this->kind(n_top) : nullptr;
    if (!kind) n_top = 0;
    for (int i = 0; i < range.count; ++i) {
        const llama_seq_id id = range.first + i;
        const auto it = pickers_.find(id);
        if ((it == pickers_.end() ? 0 : it->second.n_top) == n_top) continue;
        llama_sampler_ptr picker = kind ? make_picker(*kind) : nullptr;
        // llama_set_sampler fails for tensors split over devices.
        if (!guarded([&] { return llama_set_sampler(ctx_, id, picker.get()); }) && kind) return false;
        if (kind) {
            pickers_[id] = {std::move(picker), n_top};
        } else {
            pickers_.erase(id);
        }
    }
    return n_top > 0;
}

TopLogits DevicePicks::top(int row) const {
    const int n = (int)llama_get_sampled_candidates_count_ith(ctx_, row);
    if (n == 0) fail(ErrorKind::broken, "llama.cpp picked no tokens for row %d", row);
    return {llama_get_sampled_candidates_ith(ctx_, row), n > 1 ? llama_get_sampled_logits_ith(ctx_, row) : nullptr, n};
}

}  // namespace eaglecpp
