// SPDX-License-Identifier: MIT
// The drafter's side of coupled sampling: chooses the tokens that the drafter would sample with the target's noise. The
// drafter knows only its own distribution. It applies these samplers of the target's chain, in llama.cpp's order:
// top-k, top-p, min-p and temperature. It ignores all other samplers of the chain.
#pragma once

#include <vector>

#include "algo/noise.h"
#include "algo/topk.h"
#include "algo/tree.h"

namespace eaglecpp {

struct CoupledSampling {
    uint32_t seed = 0;
    float temperature = 0.8f;
    int top_k = 0;       // 0 = off
    float top_p = 1.0f;  // 1 = off
    float min_p = 0.0f;  // 0 = off
};

// Finds the k tokens with the largest log q_i + g_i, best first. q is the distribution of the drafter's logits[n] after
// the truncating samplers. If these samplers leave fewer than k tokens, finds fewer. g is the noise at index `pos` of
// the text. `ids` maps an index into `logits` to a token id.
//
// Candidate::logp is the log-softmax over these sums. It is the log-probability that the target chooses the token if
// the target's log-probabilities differ from the drafter's by Gumbel noise. AcceptanceModel learns the real difference
// (algo/acceptance.h). Candidate::logq is log q_i.
class CoupledDraft {
  public:
    std::vector<Candidate> best(const float * logits, int n, int k, const Token * ids, const CoupledSampling & sampling,
                                Pos pos);

  private:
    struct Entry {
        int index;
        float logit;
    };

    struct Scored {
        Token token;
        double logit, score;
    };

    void cut(const float * logits, int n, const CoupledSampling & sampling);
    void cut_top_p(const float * logits, int n, float top_p, bool is_all);

    Largest largest_;
    std::vector<Entry> kept_;  // sorted with the best token first if is_sorted_
    bool is_sorted_ = false;
    std::vector<Scored> scored_;
};

}  // namespace eaglecpp
