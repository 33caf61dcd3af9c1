// SPDX-License-Identifier: MIT
// The k largest logits of one row with their log-probabilities, in one pass each over the row for the maximum, the
// normaliser and the k best; nothing is sorted beyond k.
#pragma once

#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

// log(sum(exp(x))) of x[n], n >= 1; relative error below 1e-5
float log_sum_exp(const float * x, int n);

// index of the largest value, the first one among equals
int argmax(const float * x, int n);

// Best first; equal logits in index order. `ids` maps an index to a token id (draft to target vocabulary).
std::vector<Candidate> top_k(const float * logits, int n, int k, const Token * ids);

}  // namespace eaglecpp
