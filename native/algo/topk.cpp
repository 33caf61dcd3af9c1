// SPDX-License-Identifier: MIT
#include "algo/topk.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "algo/row_loops.h"

namespace eaglecpp {

static float log_sum_exp(const float * x, int n, float max) {
    return std::isfinite(max) ? max + (float)std::log(sum_exp(x, n, max)) : max;
}

float log_sum_exp(const float * x, int n) {
    return n == 0 ? -INFINITY : log_sum_exp(x, n, x[argmax(x, n)]);
}

int argmax(const float * x, int n) {
    if (n == 0) return 0;
    thread_local std::vector<float> of_thread;
    std::vector<float> & tops = of_thread;  // avoids a thread-local lookup at each use of `tops`
    block_tops(x, n, tops);
    const auto top = std::max_element(tops.begin(), tops.end());
    for (int i = (int)(top - tops.begin()) * n_row_block; i < n; ++i) {
        if (x[i] == *top) return i;
    }
    return 0;  // all logits are NaN
}

const std::vector<int> & Largest::of(const float * x, int n, int k) {
    k = std::max(0, std::min(k, n));
    found_.clear();
    if (k == 0) return found_;
    block_tops(x, n, tops_);
    float least = -INFINITY;
    if (k < (int)tops_.size()) {
        sorted_ = tops_;
        std::nth_element(sorted_.begin(), sorted_.begin() + (k - 1), sorted_.end(), std::greater<float>());
        least = sorted_[k - 1];
    }
    for (int b = 0; b < (int)tops_.size(); ++b) {
        if (!(tops_[b] >= least)) continue;
        for (int i = b * n_row_block; i < std::min(n, (b + 1) * n_row_block); ++i) {
            if (x[i] >= least) found_.push_back(i);
        }
    }
    const auto is_better = [x](int a, int b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
    const size_t n_best = std::min<size_t>(k, found_.size());
    std::partial_sort(found_.begin(), found_.begin() + n_best, found_.end(), is_better);
    found_.resize(n_best);
    return found_;
}

std::vector<Candidate> top_k(const float * logits, int n, int k, const Token * ids) {
    k = std::min(k, n);
    thread_local Largest largest;
    const std::vector<int> & best = largest.of(logits, n, k);
    std::vector<Candidate> out;
    if (best.empty()) return out;
    const float lse = log_sum_exp(logits, n, logits[best[0]]);
    out.reserve(best.size());
    for (int i : best) out.push_back({ids ? ids[i] : i, logits[i] - lse});
    return out;
}

}  // namespace eaglecpp
