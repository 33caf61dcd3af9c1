// SPDX-License-Identifier: MIT
#include "draft/inputs.h"

#include <algorithm>
#include <numeric>

#include "algo/windows.h"

namespace eaglecpp {

static constexpr ggml_fp16_t f16_zero = 0x0000;
static constexpr ggml_fp16_t f16_minus_inf = 0xFC00;

namespace {

struct GraphInputs {
    const DraftSpec & spec;
    const DraftWeights & weights;
    const DraftGraph & graph;
    uint8_t * bytes;
    int at_part = 0, at_row = 0, at_out = 0;  // sums over the earlier calls

    void add(const DraftCall & call) {
        const DraftGraph::Part & in = graph.parts[at_part];
        if (graph.hidden_states) add_hidden_states(call);
        if (in.state_idx) {
            int32_t * feeds = at<int32_t>(in.state_idx);
            std::fill_n(feeds, call.n_idle(), 0);
            std::copy(call.feeds.begin(), call.feeds.end(), feeds + call.n_idle());
        }
        if (graph.embd) add_embeddings(call);
        if (graph.previous) add_previous(call);
        if (graph.pos) add_positions(call);
        if (in.slot) add_slots(call, in);
        for (const auto & mask : in.masks) {
            if (mask.tensor) add_mask(call, mask, in.n_mask_rows);
        }
        ++at_part;
        at_row += call.part.n_rows;
        at_out += call.part.n_out;
    }

    template <typename T>
    T * at(const ggml_tensor * t) const {
        return (T *)(bytes + ((const uint8_t *)t->data - (const uint8_t *)graph.packed->data));
    }

    void add_hidden_states(const DraftCall & call) {
        const size_t n_part = spec.n_embd_target;
        const int n = call.n(), n_idle = call.n_idle(), n_true = n - call.n_ahead;
        const size_t n_row = n_part * spec.n_aux();
        for (int a = 0; a < spec.n_aux(); ++a) {
            float * dst = at<float>(graph.hidden_states) + at_row * n_row + a * n_part;
            const auto row = [&](int i) { return dst + i * n_row; };
            for (int i = 0; i < n_idle; ++i) std::fill_n(row(i), n_part, 0.0f);
            for (int i = 0; i < n_true; ++i) {
                std::copy_n(call.hidden_states.layer[a] + i * n_part, n_part, row(n_idle + i));
            }
            for (int i = n_true; i < n; ++i) {
                std::copy_n((const float *)weights.mask_hidden_state.stored_row(0) + a * n_part, n_part,
                            row(n_idle + i));
            }
        }
    }

    void add_embeddings(const DraftCall & call) {
        const int n = call.is_block ? 1 : call.n(), n_idle = call.n_idle();
        const size_t n_row = spec.n_embd;
        float * embd = at<float>(graph.embd) + (call.is_block ? at_part : at_row) * n_row;
        std::fill_n(embd, n_idle * n_row, 0.0f);
        for (int i = 0; i < n; ++i) {
            const Token token = i < n - call.n_ahead ? call.token(i) : spec.mask_token;
            weights.embedding.row(token, embd + (n_idle + i) * n_row);
        }
    }

    // Writes the factors of previous tokens, one row for each row with logits. In a block, only the first position's
    // previous token is known, so all other positions get zeros.
    void add_previous(const DraftCall & call) {
        const size_t n_row = spec.block.markov_rank;
        const bool has_all = graph.previous->ne[1] > (int64_t)graph.parts.size();
        const int n_idle = call.is_block ? 0 : call.n_idle(), n = call.is_block ? 1 : call.n();
        float * rows = at<float>(graph.previous) + (!call.is_block ? at_row : has_all ? at_out : at_part) * n_row;
        std::fill_n(rows, (call.is_block && has_all ? call.n_out : n_idle) * n_row, 0.0f);
        for (int i = 0; i < n; ++i) weights.before.row(call.token(i), rows + (n_idle + i) * n_row);
    }

    void add_positions(const DraftCall & call) {
        const int n_idle = call.n_idle(), n_all = call.part.n_rows, n_out = call.part.n_out;
        int32_t * positions = at<int32_t>(graph.pos) + at_row;
        std::fill_n(positions, n_idle, 0);
        std::copy(call.pos.begin(), call.pos.end(), positions + n_idle);
        if (graph.pos_out != graph.pos) {
            std::copy_n(positions + n_all - n_out, n_out, at<int32_t>(graph.pos_out) + at_out);
        }
        for (int i = 0; graph.row_out && i < n_out; ++i) {
            at<int32_t>(graph.row_out)[at_out + i] = at_row + n_all - n_out + i;
        }
    }

    void add_slots(const DraftCall & call, const DraftGraph::Part & in) {
        const DraftKv & kv = *call.part.kv;
        const int n_idle = call.n_idle(), n_all = call.part.n_rows, n_out = call.part.n_out;
        int64_t * slots = at<int64_t>(in.slot);
        std::fill_n(slots, n_idle, kv.idle_slot());
        std::iota(slots + n_idle, slots + n_all, (int64_t)call.first_slot);
        if (in.state_slot) {
            int64_t * states = at<int64_t>(in.state_slot);
            std::fill_n(states, n_out - call.n_out, kv.idle_state());
            std::iota(states + n_out - call.n_out, states + n_out, (int64_t)call.first_state);
        }
    }

    // Writes a mask. A row sees the slots of positions up to its own position: all committed rows, and those draft rows
    // that are its ancestors. A row of a block sees the whole block unless the layer is causal. A window of n positions
    // hides all positions that are n or more before the row. A padding row sees one slot, because with no slot its
    // numbers would be NaN, and other rows might read this NaN under their masks.
    void add_mask(const DraftCall & call, const DraftGraph::Part::Mask & mask, int n_mask_rows) {
        const size_t n_kv = mask.tensor->ne[0];
        const int n = call.n(), n_committed = call.part.kv->n_rows;
        const int n_idle = std::max(0, n_mask_rows - n);
        ggml_fp16_t * rows = at<ggml_fp16_t>(mask.tensor);
        std::fill_n(rows, n_kv * n_mask_rows, f16_minus_inf);
        for (int r = 0; r < n_mask_rows; ++r) {
            ggml_fp16_t * row = rows + r * n_kv;
            if (r < n_idle) {
                row[call.first_slot] = f16_zero;
                continue;
            }
            const int i = n - n_mask_rows + r;
            const int own = mask.slides ? spec.sliding_window : 0;
            const int low = DraftWindows::first_seen(call.pos[i], own, call.seq->window);
            int n_seen = call.is_commit ? call.pos[i] + 1 : n_committed;
            if (call.is_block) n_seen = mask.is_causal ? call.pos[i] + 1 : call.pos.back() + 1;
            for (int p = low; p < n_seen; ++p) row[p] = f16_zero;
            if (!call.drafts) continue;
            const Ancestry & drafts = *call.drafts;
            for (int d = drafts.n() - n + i; d >= 0 && drafts.positions[d] >= low; d = drafts.parents[d]) {
                row[n_committed + d] = f16_zero;
            }
        }
    }
};

}  // namespace

void write_inputs(const DraftSpec & spec, const DraftWeights & weights, const DraftGraph & graph, uint8_t * bytes,
                  const std::vector<DraftCall> & calls) {
    GraphInputs inputs{spec, weights, graph, bytes};
    for (const DraftCall & call : calls) inputs.add(call);
}

}  // namespace eaglecpp
