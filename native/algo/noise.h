// SPDX-License-Identifier: MIT
// Gumbel noise that target and drafter share. Of tokens with log-probabilities l_i the one with the largest
// l_i + g_i, g_i = -log(-log u_i) with independent uniform u_i, is an exact sample (the Gumbel-max rule). Here u_i is a
// function of seed, position in the text and token alone: no state, so any row, batch or thread that asks again gets
// the same answer, and a drafter that adds the same g_i to its own log-probabilities proposes what the target will
// choose far more often than its likeliest token. docs/research/coupled-sampling.md has the proof.
//
// A token's noise is W / 2^64 for 64 bits W, taken as the chance 1 - u; the largest noises are the smallest W, where a
// double is exact. The top 16 bits of four neighbouring tokens come from one output of SplitMix64 and nearly always
// show that a token cannot win; the other 48 bits and the logarithms are computed for the few that might. Logarithms
// are our own, in operations that IEEE 754 fixes to the last bit, so that the result does not depend on the machine's
// mathematical library.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace eaglecpp {

class Noise {
  public:
    // of the token at index `pos` of the text
    Noise(uint32_t seed, Pos pos);

    // the noise g of `token`, between -3.8 and 45.1
    double gumbel(Token token) const;

    // An upper bound of gumbel(token) that is far cheaper to compute; less than 0.7 above it for noises from 1 to 10.
    double bound(Token token) const;

    // A number in [0, 1) that is independent of all g, for other decisions at this position.
    double uniform() const;

    // noise independent of this one, for a second draw at the same position
    Noise second() const;

    // argmax of logits[i] * scale + gumbel(i) for token ids 0..n, in one pass over logits and a hash per four tokens.
    // NaN and -inf are never chosen, unless there is nothing else; then 0. way: as in row_loops.h
    Token choose(const float * logits, int n, double scale, int way = -1) const;

  private:
    Noise(uint64_t coarse_key, uint64_t fine_key) : coarse_key_(coarse_key), fine_key_(fine_key) {}

    uint64_t coarse_of_four(uint32_t i) const;
    uint32_t coarse(Token token) const;

    uint64_t coarse_key_, fine_key_;
};

// Natural logarithm of a positive, finite, normal number; the same bits on every machine, within 2e-16 relative (or
// 1e-16 absolute near 1).
double portable_log(double x);

// The largest of scores to which Gumbel noise is added; tokens are added one by one, in any order. For most tokens the
// bound is enough to see that they cannot win.
class NoisyBest {
  public:
    explicit NoisyBest(const Noise & noise) : noise_(noise) {}

    void add(Token token, double score);

    Token token() const { return token_; }  // -1 before the first one above -inf
    double score() const { return score_; }

  private:
    const Noise & noise_;
    Token token_ = -1;
    double score_ = -1e300;
};

}  // namespace eaglecpp
