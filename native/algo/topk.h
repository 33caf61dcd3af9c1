// SPDX-License-Identifier: MIT
// Finds the k largest logits of a row and their log-probabilities. Takes three passes over the row: for the maximum,
// the normaliser and the k largest logits. Only these k logits are sorted.
#pragma once

#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

constexpr int n_row_block = 128;

// Computes the largest value of each block of n_row_block values; the last block may be shorter. Ignores NaN. A block
// of only NaN gives -infinity.
void block_tops(const float * x, int n, std::vector<float> & tops);

// Returns sum(exp(x[i] - max)), where max is the largest value of x. The relative error is below 1e-5.
double sum_exp(const float * x, int n, float max);

// Returns log(sum(exp(x[i]))) over x[n]; -inf if n is 0. The relative error is below 1e-5.
float log_sum_exp(const float * x, int n);

// Returns the index of the largest value; the lowest index if several values are equal.
int argmax(const float * x, int n);

// Finds the indices of the k largest of x[n], best first. Equal values come in index order, and NaN is never chosen.
// Skips every block whose maximum is below the k-th largest block maximum. So finding a few tens of tokens in a
// vocabulary takes little more than one pass. Buffers are reused between calls.
class Largest {
  public:
    const std::vector<int> & of(const float * x, int n, int k);

  private:
    std::vector<float> tops_, sorted_;
    std::vector<int> found_;
};

// Returns the k largest logits, best first. Equal logits come in index order. `ids` maps an index of the draft
// vocabulary to a target token id.
std::vector<Candidate> top_k(const float * logits, int n, int k, const Token * ids);

}  // namespace eaglecpp
