// SPDX-License-Identifier: MIT
// The k largest logits of one row with their log-probabilities, in one pass each over the row for the maximum, the
// normaliser and the k best; nothing is sorted beyond k.
#pragma once

#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

// log(sum(exp(x))) of x[n], -inf of none; relative error below 1e-5
float log_sum_exp(const float * x, int n);

// index of the largest value, the first one among equals
int argmax(const float * x, int n);

// The indices of the k largest of x[n], best first, equal ones in index order, NaN never. Blocks whose largest value is
// below the k-th largest of all blocks' maxima hold none of them and are not looked at again, so finding a few tens of
// a vocabulary takes little more than one pass. The buffers are kept between calls.
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
