// SPDX-License-Identifier: MIT
#include "target/device_picks.h"

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <algorithm>

#include "base/error.h"
#include "gguf/guard.h"

namespace eaglecpp {

namespace {

// logits [n_vocab, n] -> ids and, for more than the likeliest, logits, row after row
void pick(ggml_context * ctx, ggml_tensor * logits, DevicePicks::Kind & kind) {
    const int64_t n_vocab = logits->ne[0], n = logits->ne[1];
    if (kind.n_top == 1) {
        kind.ids = ggml_argmax(ctx, logits);
        return;
    }
    kind.ids = ggml_top_k(ctx, logits, kind.n_top);
    kind.logits = ggml_get_rows(ctx, ggml_reshape_3d(ctx, logits, 1, n_vocab, n), kind.ids);
}

// The logits of all rows, of which libllama hands out a view of one: behind a row more that it adds. Null where it does
// otherwise.
ggml_tensor * all_logits(const ggml_tensor * row) {
    ggml_tensor * padded = row->view_src;
    if (!padded || padded->op != GGML_OP_PAD) return nullptr;
    ggml_tensor * all = padded->src[0];
    const bool is_plain = ggml_is_matrix(all) && ggml_is_contiguous(all) && all->ne[1] + 1 == padded->ne[1];
    return is_plain && all->ne[0] == row->ne[0] ? all : nullptr;
}

void apply(llama_sampler * self, ggml_context * ctx, ggml_cgraph *, llama_sampler_data * data) {
    auto & kind = *(DevicePicks::Kind *)self->ctx;
    const ggml_tensor * row = data->logits;
    data->logits = data->candidates = nullptr;
    if (ggml_tensor * all = all_logits(row)) {
        if (!kind.ids) pick(ctx, all, kind);
        // the picks of all have to fit where libllama copies those of a row to
        if (!kind.is_joint || all->ne[1] * kind.n_top > all->ne[0]) {
            // not picked from a view of the row: devices cannot bind memory at every number of bytes
            const size_t at = row->view_offs / row->view_src->nb[1] * kind.n_top * sizeof(float);
            data->candidates = ggml_view_1d(ctx, kind.ids, kind.n_top, at);
            if (kind.logits) data->logits = ggml_view_1d(ctx, kind.logits, kind.n_top, at);
            return;
        }
        // Samplers that have no row in this graph are asked about row 0. That row's own is among them, and one that is
        // asked about a later row has rows.
        if (row->view_offs > 0) {
            const auto & asked = kind.asked_first;
            const bool has_named = std::find(asked.begin(), asked.end(), self) != asked.end();
            if (kind.is_named || has_named) {
                kind.is_named = true;
                return;
            }
            kind.is_named = true;
        } else {
            kind.asked_first.push_back(self);
        }
        data->candidates = ggml_reshape_1d(ctx, kind.ids, ggml_nelements(kind.ids));
        if (kind.logits) data->logits = ggml_reshape_1d(ctx, kind.logits, ggml_nelements(kind.logits));
        return;
    }
    DevicePicks::Kind alone{kind.n_top, false};
    pick(ctx, ggml_reshape_2d(ctx, const_cast<ggml_tensor *>(row), row->ne[0], 1), alone);
    data->candidates = ggml_reshape_1d(ctx, alone.ids, alone.n_top);
    if (alone.logits) data->logits = ggml_reshape_1d(ctx, alone.logits, alone.n_top);
}

void forget(llama_sampler * self) {
    auto & kind = *(DevicePicks::Kind *)self->ctx;
    kind = {kind.n_top, kind.is_joint};
}

// Where a device lacks an operation libllama would give back neither tokens nor logits.
bool has_operations(llama_sampler * self, ggml_backend_buffer_type_t buft, uint32_t n_rows) {
    DevicePicks::Kind kind{((DevicePicks::Kind *)self->ctx)->n_top, false};
    ggml_backend_dev_t device = ggml_backend_buft_get_device(buft);
    if (!device) return true;
    constexpr int64_t n_vocab = 128 * 1024;
    const ggml_context_ptr ctx(ggml_init({16 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    pick(ctx.get(), ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_vocab, n_rows), kind);
    for (const ggml_tensor * t : {kind.ids, kind.logits}) {
        if (!t) continue;
        // what picks ids may be made of more than one operation
        for (; t && t->op != GGML_OP_NONE; t = t->src[0]) {
            if (!ggml_backend_dev_supports_op(device, t)) return false;
        }
    }
    return true;
}

}  // namespace

DevicePicks::Kind & DevicePicks::kind(int n_top) {
    auto & known = kinds_[n_top];
    if (!known) known = std::make_unique<Kind>(Kind{n_top, n_ubatch_ > 0});
    return *known;
}

LlamaSamplerPtr DevicePicks::make_picker(int n_top) {
    static llama_sampler_i picking = [] {
        llama_sampler_i out{};
        out.name = [](const llama_sampler *) { return "picks"; };
        out.apply = [](llama_sampler *, llama_token_data_array *) {};
        out.backend_init = has_operations;
        out.backend_apply = apply;
        out.backend_reset = forget;
        return out;
    }();
    LlamaSamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), llama_sampler_init(&picking, &kind(n_top)));
    return chain;
}

// Asked of a sampler that is thrown away: libllama takes one whose operations the device lacks, too.
bool DevicePicks::is_possible(int n_top) {
    const auto known = possible_.find(n_top);
    if (known != possible_.end()) return known->second;
    const bool is = device_ && n_top <= n_vocab_ && guarded([&] {
                        const LlamaSamplerPtr trial = make_picker(n_top);
                        return trial->iface->backend_init(trial.get(), ggml_backend_dev_buffer_type(device_), 1);
                    });
    return possible_[n_top] = is;
}

bool DevicePicks::set(const SeqRange & range, int n_top) {
    if (n_top > 0 && !is_possible(n_top)) n_top = 0;
    for (int i = 0; i < range.count; ++i) {
        const llama_seq_id id = range.first + i;
        const auto it = pickers_.find(id);
        if ((it == pickers_.end() ? 0 : it->second.n_top) == n_top) continue;
        LlamaSamplerPtr picker = n_top > 0 ? make_picker(n_top) : nullptr;
        guarded([&] { llama_set_sampler(ctx_, id, picker.get()); });
        if (n_top > 0) {
            pickers_[id] = {std::move(picker), n_top};
        } else {
            pickers_.erase(id);
        }
    }
    return n_top > 0;
}

void DevicePicks::begin(const llama_batch & rows) {
    places_.assign(rows.n_tokens, {});
    outputs_.clear();
    if (pickers_.empty()) return;
    const int n_graph = n_ubatch_ > 0 ? n_ubatch_ : rows.n_tokens;
    for (int first = 0; first < rows.n_tokens; first += n_graph) {
        std::vector<int> outputs;
        for (int i = first; i < std::min(first + n_graph, rows.n_tokens); ++i) {
            if (!rows.logits[i]) continue;
            const auto picker = pickers_.find(rows.seq_id[i][0]);
            const int n_top = picker == pickers_.end() ? 0 : picker->second.n_top;
            places_[i] = {n_top, (int)outputs_.size(), (int)outputs.size()};
            outputs.push_back(i);
        }
        outputs_.push_back(std::move(outputs));
    }
}

// Which row names the picks of all depends on which of its ids libllama takes for a row's first.
TopLogits DevicePicks::top(int row) const {
    const Place & p = places_.at(row);
    const auto count = [&](int r) { return (int)llama_get_sampled_candidates_count_ith(ctx_, r); };
    const auto picks = [&](int r, int at) -> TopLogits {
        const float * logits = p.n_top > 1 ? llama_get_sampled_logits_ith(ctx_, r) + at * p.n_top : nullptr;
        return {llama_get_sampled_candidates_ith(ctx_, r) + at * p.n_top, logits, p.n_top};
    };
    if (p.n_top > 0) {
        const std::vector<int> & outputs = outputs_[p.graph];
        for (int r : outputs) {
            const bool is_kind = places_[r].n_top == p.n_top;
            if (is_kind && count(r) == p.n_top * (int)outputs.size()) return picks(r, p.at);
        }
        if (count(row) == p.n_top) return picks(row, 0);
    }
    fail(ErrorKind::broken, "llama.cpp picked no tokens for row %d", row);
}

Token DevicePicks::best(int row) const {
    return top(row).tokens[0];
}

}  // namespace eaglecpp
