// SPDX-License-Identifier: MIT
// Gumbel noise that target and drafter share. Among tokens with log-probabilities l_i, the token with the largest l_i +
// g_i, where g_i = -log(-log u_i) with independent uniform u_i, is an exact sample (the Gumbel-max rule). Here u_i is a
// function of seed, position in the text and token only. It has no state, so every row, batch and thread computes the
// same u_i. A drafter that adds the same g_i to its own log-probabilities proposes the target's choice far more often
// than its own likeliest token would. The proof is in docs/research/coupled-sampling.md.
//
// The noise of a token comes from 64 bits W: the probability 1 - u is W / 2^64. The largest noises have the smallest W,
// where a double is exact. One output of SplitMix64 holds the top 16 bits of W for four neighbouring tokens. These bits
// nearly always show that a token cannot win. The other 48 bits and the logarithms are computed only for the few tokens
// that might win. The logarithms use only operations that IEEE 754 defines to the last bit, so the result does not
// depend on the machine's math library.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace eaglecpp {

class Noise {
  public:
    // Selects the noise at index `pos` of the text.
    Noise(uint32_t seed, Pos pos);

    // Returns the noise g of `token`, a number between -3.8 and 45.1.
    double gumbel(Token token) const;

    // Returns an upper bound of gumbel(token), which is much faster to compute. For noises from 1 to 10 the bound is
    // less than 0.7 too high.
    double bound(Token token) const;

    // Returns a number in [0, 1) for random decisions other than the choice of a token. It is independent of all
    // gumbel() values.
    double uniform() const;

    // Returns different noise for a second draw at the same position. The two noises are independent.
    Noise second() const;

    // Returns the token i in 0..n with the largest logits[i] * scale + gumbel(i). Takes one pass over the logits and
    // one hash per four tokens. Never chooses a token whose logit is NaN or -inf; returns 0 if all logits are.
    Token choose(const float * logits, int n, double scale) const;

  private:
    Noise(uint64_t coarse_key, uint64_t fine_key) : coarse_key_(coarse_key), fine_key_(fine_key) {}

    uint64_t coarse_of_four(uint32_t i) const;
    uint32_t coarse(Token token) const;

    uint64_t coarse_key_, fine_key_;
};

// Returns the natural logarithm of a positive, finite, normal number. The result has the same bits on every machine.
// Its relative error is below 2e-16, and its absolute error is below 1e-16 near x = 1.
double portable_log(double x);

// Finds the token with the largest sum of score and Gumbel noise. Tokens are added one by one, in any order. For most
// tokens, bound() alone shows that the token cannot win.
class NoisyBest {
  public:
    explicit NoisyBest(const Noise & noise) : noise_(noise) {}

    void add(Token token, double score);

    Token token() const { return token_; }  // the best token so far; -1 until a score above -inf was added
    double score() const { return score_; }

  private:
    const Noise & noise_;
    Token token_ = -1;
    double score_ = -1e300;
};

}  // namespace eaglecpp
