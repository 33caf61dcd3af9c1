// SPDX-License-Identifier: MIT
#include "draft/outputs.h"

#include <algorithm>
#include <cmath>

#include "algo/topk.h"
#include "base/error.h"

namespace eaglecpp {

LandedPicks fetch_picks(DraftDevice & device, const DraftGraph & g) {
    LandedPicks landed;
    if (!g.top_ids) return landed;
    static_assert(sizeof(int32_t) == sizeof(float), "ids, logits and probabilities side by side");
    landed.n = ggml_nelements(g.top_ids);
    uint8_t * landing = device.landing(3 * landed.n * sizeof(float));
    landed.ids = (const int32_t *)landing;
    landed.numbers = (const float *)landing + landed.n;
    for (const ggml_tensor * t : {g.top_ids, g.top_logits, g.top_probs}) {
        ggml_backend_tensor_get_async(device.backend(), t, landing, 0, landed.n * sizeof(float));
        landing += landed.n * sizeof(float);
    }
    return landed;
}

void DraftOutputs::take(const DraftGraph & g, int first, int n, const LandedPicks & landed) {
    run_ = drafter_.n_runs();
    first_ = first;
    n_ = n;
    logits_.clear();
    picked_.clear();
    logits_tensor_ = g.logits;
    n_logits_ = g.logits ? g.logits->ne[0] : 0;
    if (n_ == 0) return;
    if (g.top_ids) {
        read_picked(landed, g.top_ids->ne[0]);
    } else {
        logits(0);
    }
}

void DraftOutputs::read_picked(const LandedPicks & landed, size_t n_each) {
    for (int r = first_; r < first_ + n_; ++r) {
        Picked p;
        float best_prob = 0.0f;
        for (size_t i = r * n_each; i < (r + 1) * n_each; ++i) {
            p.tokens.emplace_back(landed.ids[i], landed.numbers[i]);
            best_prob = std::max(best_prob, landed.numbers[landed.n + i]);
        }
        std::sort(p.tokens.begin(), p.tokens.end(), [](const auto & a, const auto & b) {
            return a.second != b.second ? a.second > b.second : a.first < b.first;
        });
        p.log_sum_exp = p.tokens[0].second - std::log(best_prob);
        picked_.push_back(std::move(p));
    }
}

const float * DraftOutputs::logits(int i) {
    if (logits_.empty()) {
        if (!logits_tensor_ || run_ != drafter_.n_runs()) fail(ErrorKind::broken, "these draft logits are gone");
        logits_.resize((size_t)n_ * n_logits_);
        ggml_backend_tensor_get(logits_tensor_, logits_.data(), (size_t)first_ * n_logits_ * sizeof(float),
                                logits_.size() * sizeof(float));
    }
    return logits_.data() + (size_t)i * n_logits_;
}

std::vector<Candidate> DraftOutputs::candidates(int i, int k) {
    const Token * ids = drafter_.d2t().data();
    if (picked_.empty() || (size_t)k > picked_[i].tokens.size()) return top_k(logits(i), (int)n_logits_, k, ids);
    std::vector<Candidate> out;
    const Picked & p = picked_[i];
    for (int j = 0; j < k; ++j) {
        const auto & [index, logit] = p.tokens[j];
        out.push_back({ids ? ids[index] : index, logit - p.log_sum_exp});
    }
    return out;
}

// Everything that these cuts can leave was picked.
bool DraftOutputs::covers(const Picked & picked, const CoupledSampling & sampling) const {
    if (picked.tokens.size() == n_logits_) return true;
    return sampling.top_k > 0 && (size_t)sampling.top_k <= picked.tokens.size();
}

std::vector<Candidate> DraftOutputs::candidates(int i, int k, const CoupledSampling & sampling, Pos pos) {
    const Token * ids = drafter_.d2t().data();
    const float * row = nullptr;
    if (!picked_.empty() && covers(picked_[i], sampling)) {
        scattered_.assign(n_logits_, -INFINITY);
        for (const auto & [index, logit] : picked_[i].tokens) scattered_[index] = logit;
        row = scattered_.data();
    } else {
        row = logits(i);
    }
    return coupled_.best(row, (int)n_logits_, k, ids, sampling, pos);
}

}  // namespace eaglecpp
