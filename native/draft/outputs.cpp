// SPDX-License-Identifier: MIT
#include "draft/outputs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace eaglecpp {

// Returns x, or -inf if x is NaN. NaN comes from broken weights or hidden states and must rank last.
static float number(float x) {
    return std::isnan(x) ? -INFINITY : x;
}

static bool is_better(const std::pair<int32_t, float> & a, const std::pair<int32_t, float> & b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
}

std::vector<LandedPicks> fetch_picks(DraftDevice & device, const DraftGraph & g) {
    std::vector<const DraftGraph *> all{&g};
    for (const auto & step : g.steps) all.push_back(step.get());
    std::vector<LandedPicks> landed(all.size());
    if (!g.top_ids) return landed;
    const size_t n_bytes = ggml_nbytes(g.picked);
    const uint8_t * landing = device.landing(n_bytes);
    ggml_backend_tensor_get_async(device.backend(), g.picked, (void *)landing, 0, n_bytes);
    const auto at = [&](const ggml_tensor * t) { return landing + ((uint8_t *)t->data - (uint8_t *)g.picked->data); };
    for (size_t i = 0; i < all.size(); ++i) {
        landed[i] = {(const int32_t *)at(all[i]->top_ids), (const float *)at(all[i]->top_logits),
                     (const float *)at(all[i]->top_probs)};
    }
    if (g.hidden) landed[0].hidden = (const float *)at(g.hidden);
    return landed;
}

void DraftOutputs::take(const DraftGraph & g, int first, int n, const std::vector<LandedPicks> & landed) {
    run_ = drafter_.n_runs();
    first_ = first;
    n_ = n;
    logits_.clear();
    picked_.clear();
    selected_.clear();
    confidence_.clear();
    logits_tensor_ = g.logits;
    step_logits_.clear();
    for (const auto & step : g.steps) step_logits_.push_back(step->logits);
    n_logits_ = g.logits ? g.logits->ne[0] : 0;
    if (n_ == 0) return;
    if (g.top_ids) {
        read_picked(landed[0], g.top_ids->ne[0], first_, n_);
        for (size_t i = 1; i < landed.size(); ++i) read_picked(landed[i], g.top_ids->ne[0], 0, 1);
    } else {
        logits(0);
    }
}

void DraftOutputs::read_picked(const LandedPicks & landed, size_t n_each, int first, int n) {
    for (int r = first; r < first + n; ++r) {
        Picked p;
        float best_prob = 0.0f;
        for (size_t i = r * n_each; i < (r + 1) * n_each; ++i) {
            p.tokens.emplace_back(landed.ids[i], number(landed.logits[i]));
            best_prob = std::max(best_prob, landed.probs[i]);
        }
        std::sort(p.tokens.begin(), p.tokens.end(), is_better);
        p.log_sum_exp = p.tokens[0].second - std::log(best_prob);
        picked_.push_back(std::move(p));
    }
}

void DraftOutputs::begin_block(const DraftGraph & g, const DraftCall & block, int first,
                               const std::vector<LandedPicks> & landed) {
    n_slots_ = block.n_out;
    const size_t n_row = g.hidden ? g.hidden->ne[0] : 0;
    hidden_.resize(n_slots_ * n_row);
    if (g.top_ids && g.hidden) {
        std::copy_n(landed[0].hidden + first * n_row, hidden_.size(), hidden_.data());
    } else if (g.hidden) {
        ggml_backend_tensor_get(g.hidden, hidden_.data(), first * n_row * sizeof(float),
                                hidden_.size() * sizeof(float));
    }
    const BlockSpec & b = drafter_.spec().block;
    if (!drafter_.selects()) {
        std::vector<int32_t> slots(b.markov_rank > 0 ? 1 : n_slots_);
        std::iota(slots.begin(), slots.end(), 0);
        return judge(slots, block.tokens);
    }
    slots_ = picked_;
    for (int slot = (int)slots_.size(); slot < n_slots_; ++slot) {
        Picked & p = slots_.emplace_back();
        for (int index : largest_.of(logits(slot), (int)n_logits_, b.selector_top_k)) {
            p.tokens.emplace_back(index, logits(slot)[index]);
        }
    }
    select({0}, block.tokens);
}

// Computes the confidence as a logit, from the position's state and the row of W1. Source of the arithmetic:
// deepseek-ai/DeepSpec deepspec/modeling/dspark.
void DraftOutputs::judge(const std::vector<int32_t> & slots, const Token * before) {
    const DraftWeights & w = drafter_.weights();
    if (hidden_.empty()) return;
    const int n = drafter_.spec().block.markov_rank;
    std::vector<float> factors(w.confidence.n_embd());
    w.confidence.row(0, factors.data());
    std::vector<float> row(n);
    for (size_t i = 0; i < slots.size(); ++i) {
        if (!row.empty()) w.before.row(stand_in(before[i]), row.data());
        confidence_.push_back(
            std::inner_product(row.begin(), row.end(), factors.begin() + drafter_.spec().n_embd, hidden_[slots[i]]));
    }
}

void DraftOutputs::select(const std::vector<int32_t> & slots, const Token * before) {
    selected_.clear();
    for (size_t i = 0; i < slots.size(); ++i) selected_.push_back(behind(slots[i], stand_in(before[i])));
    confidence_.clear();
    if (drafter_.spec().block.selector_rank == 0) judge(slots, before);
}

// Computes a dot product with separate partial sums, so that the compiler can vectorise it.
static float dot(const float * x, const float * y, int n) {
    constexpr int n_lanes = 8;
    float sums[n_lanes] = {};
    int i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        for (int lane = 0; lane < n_lanes; ++lane) sums[lane] += x[i + lane] * y[i + lane];
    }
    return std::inner_product(x + i, x + n, y + i, std::accumulate(sums, sums + n_lanes, 0.0f));
}

// Scores the picked tokens of a position, given the previous token. DFlash2 takes a softmax over the picked tokens
// (vllm-project/vllm qwen3_dflash2.py). DSpark adds W2 W1[before] to their logits and leaves all other logits unchanged
// (qwen3_dspark.py with dspark_draft_topk).
DraftOutputs::Picked DraftOutputs::behind(int slot, Token before) const {
    const DraftWeights & w = drafter_.weights();
    const DraftSpec & s = drafter_.spec();
    const bool is_markov = s.block.markov_rank > 0;
    Picked p = slots_[slot];
    if (is_markov && slot == 0) return p;  // the graph already added W2 W1 to all logits of the first position
    const int n = is_markov ? s.block.markov_rank : s.block.selector_rank;
    std::vector<float> row(n), after(n), scores;
    w.before.row(before, row.data());
    for (int c = 0; c < n; ++c) row[c] *= is_markov ? s.logit_scale : hidden_[(size_t)slot * n + c];
    float rest = 1.0f;
    for (auto & [index, score] : p.tokens) {
        rest -= std::exp(score - p.log_sum_exp);
        w.after.row(is_markov ? index : drafter_.d2t()[index], after.data());
        score = number(score + dot(row.data(), after.data(), n));
        scores.push_back(score);
    }
    if (is_markov && rest > 0.0f && p.tokens.size() < n_logits_) scores.push_back(p.log_sum_exp + std::log(rest));
    std::sort(p.tokens.begin(), p.tokens.end(), is_better);
    p.log_sum_exp = log_sum_exp(scores.data(), (int)scores.size());
    return p;
}

const float * DraftOutputs::logits(int i) {
    if (logits_.empty()) {
        fail_if(!logits_tensor_ || run_ != drafter_.n_runs(), ErrorKind::broken,
                "a later call has overwritten the draft logits; read them before this call");
        const size_t n_row = n_logits_ * sizeof(float);
        logits_.resize((n_ + step_logits_.size()) * n_logits_);
        ggml_backend_tensor_get(logits_tensor_, logits_.data(), first_ * n_row, n_ * n_row);
        for (size_t j = 0; j < step_logits_.size(); ++j) {
            ggml_backend_tensor_get(step_logits_[j], logits_.data() + (n_ + j) * n_logits_, 0, n_row);
        }
    }
    if (i < 0 || (size_t)i >= logits_.size() / n_logits_) fail(ErrorKind::value, "output row %d does not exist", i);
    return logits_.data() + (size_t)i * n_logits_;
}

// Returns true if the picked tokens include the k best tokens. With `sampling`, they must include all tokens that can
// pass the truncating samplers.
bool DraftOutputs::covers(const Picked & picked, int k, const std::optional<CoupledSampling> & sampling) const {
    const size_t n_there = picked.tokens.size();
    if (!sampling) return (size_t)k <= n_there;
    return n_there == n_logits_ || (sampling->top_k > 0 && (size_t)sampling->top_k <= n_there);
}

std::vector<Candidate> DraftOutputs::likeliest(const Picked & picked, int k) const {
    std::vector<Candidate> out;
    if (!std::isfinite(picked.log_sum_exp)) return out;
    for (int j = 0; j < k && j < (int)picked.tokens.size(); ++j) {
        out.push_back({drafter_.d2t()[picked.tokens[j].first], picked.tokens[j].second - picked.log_sum_exp});
    }
    return out;
}

std::vector<Candidate> DraftOutputs::candidates(int i, int k, const std::optional<CoupledSampling> & sampling,
                                                Pos pos) {
    // With a selector, only the selected tokens are candidates.
    const Picked * picked = selected_.empty() ? nullptr : &selected_[i];
    if (!picked && !picked_.empty() && covers(picked_[i], k, sampling)) picked = &picked_[i];
    std::vector<Candidate> out;
    if (picked && !sampling) {
        out = likeliest(*picked, k);
    } else if (picked) {
        picked_logits_.clear();
        picked_tokens_.clear();
        for (const auto & [index, logit] : picked->tokens) {
            picked_logits_.push_back(logit);
            picked_tokens_.push_back(drafter_.d2t()[index]);
        }
        const int n = (int)picked_logits_.size();
        out = coupled_.best(picked_logits_.data(), n, k, picked_tokens_.data(), *sampling, pos);
    } else {
        const float * row = logits(i);
        const Token * ids = drafter_.d2t().data();
        out =
            sampling ? coupled_.best(row, (int)n_logits_, k, ids, *sampling, pos) : top_k(row, (int)n_logits_, k, ids);
    }
    for (Candidate & c : out) c.confidence = confidence_.empty() ? 0.0f : confidence_[i];
    return out;
}

}  // namespace eaglecpp
