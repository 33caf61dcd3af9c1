// SPDX-License-Identifier: MIT
// The k largest logits of a row with their log-probabilities. One pass over the row each for the maximum, the
// normaliser and the k best; only the k best are sorted.
#pragma once

#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

// log(sum(exp(x))) of x[n]; -inf if n is 0. Relative error below 1e-5.
float log_sum_exp(const float * x, int n);

// Index of the largest value; the first one if several are equal.
int argmax(const float * x, int n);

// Indices of the k largest of x[n], best first, equal values in index order, never NaN. Skips all blocks whose maximum
// is below the k-th largest of the blocks' maxima, so a few tens of a vocabulary cost little more than one pass.
// Buffers are reused between calls.
class Largest {
  public:
    const std::vector<int> & of(const float * x, int n, int k);

  private:
    std::vector<float> tops_, sorted_;
    std::vector<int> found_;
};

// Best first; equal logits in index order. `ids` maps an index to a token id (draft to target vocabulary).
std::vector<Candidate> top_k(const float * logits, int n, int k, const Token * ids);

}  // namespace eaglecpp
