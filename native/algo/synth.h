// SPDX-License-Identifier: MIT
// Synthetic acceptance, for honest speed measurements with a drafter that is not trained yet (llama.cpp's
// --spec-synth-rates): drafts are accepted by lot, at given rates, instead of by what the target samples. The text it
// gives is meaningless and not the target's; whoever switches it on must say so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

class SynthAcceptance {
  public:
    // rates[d - 1]: chance that the first d drafts of a chain are all accepted, as in llama.cpp's option; deeper ones
    // never are. Error(value) unless they lie in [0, 1] and do not rise.
    SynthAcceptance(const std::vector<double> & rates, uint64_t seed);

    // "0.8,0.6,0.45"; Error(value)
    static std::vector<double> parse_rates(const std::string & text);

    // The token to emit at `node` in place of `sampled`, for the token at position `pos`: the likeliest child with its
    // rate, else `sampled`, or the next token id that no child carries. One draw per position, so that every strategy
    // meets the same luck.
    Token choose(const DraftTree & tree, int node, Token sampled, Pos pos, int n_vocab) const;

  private:
    std::vector<double> conditional_;  // [depth - 1]
    uint64_t seed_;
};

}  // namespace eaglecpp
