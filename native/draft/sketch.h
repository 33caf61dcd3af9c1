// SPDX-License-Identifier: MIT
// The output head in two parts: a product of low rank, the sketch, finds the large logits. These are computed with the
// head's own rows, all others stay as the sketch has them.
#pragma once

#include <cstdint>
#include <vector>

#include "draft/weights.h"

namespace eaglecpp {

// The second part for up to n_rows rows in one graph. Allocates all its memory in the constructor, because nothing may
// throw in ggml's threads.
class ExactLogits : Pinned {
  public:
    ExactLogits(const DraftWeights & weights, int64_t n_rows);

    // `sketch` [n_out, n] with exact large logits, in place; x [n_in, n] are the inputs of the head
    ggml_tensor * in(ggml_context * ctx, ggml_tensor * sketch, ggml_tensor * x);

  private:
    struct Row {
        std::vector<float> tops, sorted;
        std::vector<int> large;
        std::vector<uint8_t> rounded;  // x as ggml multiplies it
    };
    static void choose(ggml_tensor * out, int ith, int nth, void * exact);
    static void compute(ggml_tensor * out, int ith, int nth, void * exact);

    const DraftWeights & weights_;
    std::vector<Row> rows_;
};

}  // namespace eaglecpp
