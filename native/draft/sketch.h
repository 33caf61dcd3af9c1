// SPDX-License-Identifier: MIT
// Computes the output head in two parts. A product of low rank, the sketch, approximates all logits and so finds the
// large ones. The second part computes the large logits again, with the rows of the full head.
#pragma once

#include <cstdint>
#include <vector>

#include "draft/weights.h"

namespace eaglecpp {

// The second part of the head, for up to n_rows rows in one graph. Allocates all its memory in the constructor, because
// nothing may throw in ggml's threads.
class ExactLogits : Pinned {
  public:
    ExactLogits(const DraftWeights & weights, int64_t n_rows);

    // Adds the second part to a graph: `sketch` [n_out, n] gets exact large logits, in place. x [n_in, n] are the
    // inputs of the head.
    ggml_tensor * in(ggml_context * ctx, ggml_tensor * sketch, ggml_tensor * x);

  private:
    struct Row {
        std::vector<float> tops, sorted;
        std::vector<int> large;
        std::vector<uint8_t> rounded;  // x, rounded as ggml's products round it
    };
    static void choose(ggml_tensor * out, int ith, int nth, void * exact);
    static void compute(ggml_tensor * out, int ith, int nth, void * exact);

    const DraftWeights & weights_;
    std::vector<Row> rows_;
};

}  // namespace eaglecpp
