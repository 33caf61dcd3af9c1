// SPDX-License-Identifier: MIT
#include "algo/coupled.h"

#include <algorithm>
#include <cmath>

namespace eaglecpp {

// Tokens are ignored if their logits, divided by the temperature, are this far below the largest. The noise raises such
// a token above the likeliest token once in nine million times.
static constexpr float depth_max = 16.0f;
static constexpr int n_sorted_first = 256;  // number of tokens sorted first, which usually have most of the probability

// Sets kept_ to the tokens that remain after top-k, top-p and min-p.
void CoupledDraft::cut(const float * logits, int n, const CoupledSampling & sampling) {
    kept_.clear();
    if (n == 0) return;
    is_sorted_ = sampling.top_k > 0 && sampling.top_k < n;
    if (is_sorted_) {
        for (int i : largest_.of(logits, n, sampling.top_k)) kept_.push_back({i, logits[i]});
        if (kept_.empty()) return;
    }
    const float top = is_sorted_ ? kept_[0].logit : logits[argmax(logits, n)];
    if (!is_sorted_) {
        float least = top - depth_max * sampling.temperature;
        if (sampling.min_p > 0.0f) least = std::max(least, top + std::log(sampling.min_p));
        for (int i = 0; i < n; ++i) {
            if (logits[i] >= least) kept_.push_back({i, logits[i]});
        }
    }
    if (sampling.top_p < 1.0f) cut_top_p(logits, n, sampling.top_p, !is_sorted_);
    if (sampling.min_p > 0.0f) {
        const float least = top + std::log(sampling.min_p);
        kept_.erase(std::remove_if(kept_.begin(), kept_.end(), [&](const Entry & e) { return e.logit < least; }),
                    kept_.end());
    }
}

// Removes tokens by top-p. is_all: normalises over all tokens, not only over the tokens in kept_.
void CoupledDraft::cut_top_p(const float * logits, int n, float top_p, bool is_all) {
    const auto is_better = [](const Entry & a, const Entry & b) { return a.logit > b.logit; };
    double total = 0.0;
    if (is_all) {
        total = log_sum_exp(logits, n);
    } else {
        for (const Entry & e : kept_) total += std::exp(e.logit - kept_[0].logit);
        total = kept_[0].logit + std::log(total);
    }
    size_t n_sorted = is_sorted_ ? kept_.size() : 0;
    double sum = 0.0;
    for (size_t i = 0; i < kept_.size(); ++i) {
        if (i == n_sorted) {
            n_sorted = std::min(kept_.size(), n_sorted == 0 ? (size_t)n_sorted_first : kept_.size());
            std::partial_sort(kept_.begin() + i, kept_.begin() + n_sorted, kept_.end(), is_better);
        }
        sum += std::exp(kept_[i].logit - total);
        if (sum >= top_p) {
            kept_.resize(i + 1);
            return;
        }
    }
}

std::vector<Candidate> CoupledDraft::best(const float * logits, int n, int k, const Token * ids,
                                          const CoupledSampling & sampling, Pos pos) {
    cut(logits, n, sampling);
    const Noise noise(sampling.seed, pos);
    const double scale = 1.0 / sampling.temperature;
    scored_.clear();
    for (const Entry & e : kept_) {
        const Token token = ids ? ids[e.index] : e.index;
        const double logit = e.logit * scale, score = logit + noise.gumbel(token);
        scored_.push_back({token, logit, score});
    }
    const auto log_sum = [&](double Scored::* value) {
        double top = -1e300, sum = 0.0;
        for (const Scored & s : scored_) top = std::max(top, s.*value);
        for (const Scored & s : scored_) sum += std::exp(s.*value - top);
        return top + std::log(sum);
    };
    const double clean = log_sum(&Scored::logit), noisy = log_sum(&Scored::score);
    const size_t n_best = std::min<size_t>(k, scored_.size());
    std::partial_sort(scored_.begin(), scored_.begin() + n_best, scored_.end(), [](const Scored & a, const Scored & b) {
        return a.score != b.score ? a.score > b.score : a.token < b.token;
    });
    std::vector<Candidate> out;
    for (size_t i = 0; i < n_best; ++i) {
        const Scored & s = scored_[i];
        out.push_back({s.token, (float)(s.score - noisy), (float)(s.logit - clean)});
    }
    return out;
}

}  // namespace eaglecpp
