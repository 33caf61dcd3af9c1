// SPDX-License-Identifier: MIT
#include "algo/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

namespace eaglecpp {

// Lanes kept apart so that the compiler vectorises sums and maxima without reassociating floats on its own.
static constexpr int n_lanes = 16;

// exp(x) for x <= 0 without a call: 2^i * 2^f with a polynomial for 2^f on [-0.5, 0.5]. std::exp is not vectorised and
// would cost as much as a small draft head on 32000 logits.
static inline float exp_negative(float x) {
    const float t = std::max(x * 1.44269504f, -126.0f);
    const float r = t + 12582912.0f;  // rounds to an integer: 1.5 * 2^23
    const float f = t - (r - 12582912.0f);
    const float p =
        1.0f + f * (0.69314718f + f * (0.24022651f + f * (0.05550411f + f * (0.00961813f + f * 0.00133336f))));
    int32_t bits;
    std::memcpy(&bits, &r, 4);
    const int32_t scale_bits = (bits - 0x4B400000 + 127) << 23;
    float scale;
    std::memcpy(&scale, &scale_bits, 4);
    return p * scale;
}

static float row_max(const float * x, int n) {
    float lane[n_lanes];
    std::fill_n(lane, n_lanes, x[0]);
    int i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) lane[j] = lane[j] > x[i + j] ? lane[j] : x[i + j];
    }
    float best = *std::max_element(lane, lane + n_lanes);
    for (; i < n; ++i) best = std::max(best, x[i]);
    return best;
}

static float log_sum_exp(const float * x, int n, float max) {
    if (!std::isfinite(max)) return max;
    float lane[n_lanes] = {};
    int i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) lane[j] += exp_negative(x[i + j] - max);
    }
    double sum = 0.0;
    for (float v : lane) sum += v;
    for (; i < n; ++i) sum += exp_negative(x[i] - max);
    return max + (float)std::log(sum);
}

float log_sum_exp(const float * x, int n) {
    return log_sum_exp(x, n, row_max(x, n));
}

int argmax(const float * x, int n) {
    const float best = row_max(x, n);
    for (int i = 0; i < n; ++i) {
        if (x[i] == best) return i;
    }
    return 0;  // all NaN
}

static constexpr int n_block = 128;

const std::vector<int> & Largest::of(const float * x, int n, int k) {
    k = std::max(0, std::min(k, n));
    found_.clear();
    tops_.clear();
    if (k == 0) return found_;
    for (int at = 0; at < n; at += n_block) {
        const int size = std::min(n_block, n - at);
        float lane[n_lanes];
        std::fill_n(lane, n_lanes, -INFINITY);
        int i = at;
        for (; i + n_lanes <= at + size; i += n_lanes) {
            for (int j = 0; j < n_lanes; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
        }
        for (; i < at + size; ++i) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
        tops_.push_back(*std::max_element(lane, lane + n_lanes));
    }
    float least = -INFINITY;
    if (k < (int)tops_.size()) {
        sorted_ = tops_;
        std::nth_element(sorted_.begin(), sorted_.begin() + (k - 1), sorted_.end(), std::greater<float>());
        least = sorted_[k - 1];
    }
    for (int b = 0; b < (int)tops_.size(); ++b) {
        if (!(tops_[b] >= least)) continue;
        for (int i = b * n_block; i < std::min(n, (b + 1) * n_block); ++i) {
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
    const float max = row_max(logits, n);
    const float lse = log_sum_exp(logits, n, max);
    std::vector<int> best;
    best.reserve(k + 1);
    if (k == 1) {
        best.push_back(argmax(logits, n));
    } else {
        // a sorted list of at most k indices; most logits fail the first comparison
        for (int i = 0; i < n; ++i) {
            if ((int)best.size() == k && !(logits[i] > logits[best.back()])) continue;
            auto it = best.end();
            while (it != best.begin() && logits[i] > logits[*(it - 1)]) --it;
            best.insert(it, i);
            if ((int)best.size() > k) best.pop_back();
        }
    }
    std::vector<Candidate> out;
    out.reserve(best.size());
    for (int i : best) out.push_back({ids ? ids[i] : i, logits[i] - lse});
    return out;
}

}  // namespace eaglecpp
