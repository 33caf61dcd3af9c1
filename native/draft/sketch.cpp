// SPDX-License-Identifier: MIT
#include "draft/sketch.h"

#include <algorithm>
#include <functional>

#include "algo/row_loops.h"
#include "kernels/product_ops.h"

namespace eaglecpp {

using kernels::row_of;

static constexpr int n_large_max = 4096;  // maximum number of large logits; the others keep the sketch's values

ExactLogits::ExactLogits(const DraftWeights & weights, int64_t n_rows) : weights_(weights), rows_(n_rows) {
    const EmbeddingTable & head = weights.head_rows;
    for (Row & row : rows_) {
        for (auto * values : {&row.tops, &row.sorted}) values->reserve(head.n_rows() / n_row_block + 1);
        row.large.reserve(n_large_max);
        row.rounded.resize(ggml_row_size(weights.head_product->vec_dot_type, head.n_embd()));
    }
}

ggml_tensor * ExactLogits::in(ggml_context * ctx, ggml_tensor * sketch, ggml_tensor * x) {
    ggml_tensor * args[] = {sketch, x};
    args[0] = ggml_custom_4d(ctx, GGML_TYPE_I32, 1, x->ne[1], 1, 1, args, 2, choose, GGML_N_TASKS_MAX, this);
    return ggml_custom_inplace(ctx, sketch, args, 1, compute, GGML_N_TASKS_MAX, this);
}

// Chooses the large logits: those that reach the n-th largest of the blocks' maxima, where n is half the number of
// blocks, at most 256. These are 1.5 % of SmolLM2's draft vocabulary.
void ExactLogits::choose(ggml_tensor * out, int ith, int nth, void * exact) {
    auto & self = *(ExactLogits *)exact;
    const int n = self.weights_.head_rows.n_rows();
    for (int64_t r = ith; r < out->ne[1]; r += nth) {
        const float * sketch = row_of<const float>(out->src[0], r);
        Row & row = self.rows_[r];
        block_tops(sketch, n, row.tops);
        const int n_blocks = (int)row.tops.size(), n_least = std::clamp(n_blocks / 2, 1, 256);
        row.sorted = row.tops;
        std::nth_element(row.sorted.begin(), row.sorted.begin() + n_least - 1, row.sorted.end(), std::greater<float>());
        const float least = row.sorted[n_least - 1];
        row.large.clear();
        for (int b = 0; b < n_blocks; ++b) {
            if (row.tops[b] < least) continue;
            for (int i = b * n_row_block; i < std::min(n, (b + 1) * n_row_block); ++i) {
                if (sketch[i] >= least && row.large.size() < n_large_max) row.large.push_back(i);
            }
        }
        const float * x = row_of<const float>(out->src[1], r);
        self.weights_.head_input->from_float(x, row.rounded.data(), self.weights_.head_rows.n_embd());
    }
}

void ExactLogits::compute(ggml_tensor * out, int ith, int nth, void * exact) {
    const auto & self = *(const ExactLogits *)exact;
    const EmbeddingTable & head = self.weights_.head_rows;
    for (int64_t r = 0; r < out->ne[1]; ++r) {
        const Row & row = self.rows_[r];
        const auto [first, end] = kernels::share((int64_t)row.large.size(), ith, nth);
        for (int64_t k = first; k < end; ++k) {
            float * logit = row_of<float>(out, r) + row.large[k];
            self.weights_.head_product->vec_dot(head.n_embd(), logit, 0, head.stored_row(row.large[k]), 0,
                                                row.rounded.data(), 0, 1);
        }
    }
}

}  // namespace eaglecpp
