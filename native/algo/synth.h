// SPDX-License-Identifier: MIT
// Synthetic acceptance, for tests and benchmarks (llama.cpp's --spec-synth-rates): drafts are accepted at random, at
// given rates, instead of by what the target samples. The resulting text is meaningless and not the target's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

class SynthAcceptance {
  public:
    // rates[d - 1]: chance that the first d drafts of a chain are all accepted, as in llama.cpp's option; deeper ones
    // never are. Error(value) unless they lie in [0, 1] and do not rise.
    SynthAcceptance(const std::vector<double> & rates, uint64_t seed);

    // The token to emit at `node` of everything proposed, in place of `sampled`, for the token at position `pos`: the
    // likeliest child with its rate, unless it would end the generation; else `sampled`, or the next token id that no
    // child carries. One draw per position, so that every strategy meets the same luck.
    Token choose(const DraftTree & pool, int node, Token sampled, Pos pos, int n_vocab,
                 const std::function<bool(Token)> & is_end) const;

  private:
    std::vector<double> conditional_;  // [depth - 1]
    uint64_t seed_;
};

}  // namespace eaglecpp
