// SPDX-License-Identifier: MIT
// This file is compiled without contraction of a*b+c (native/CMakeLists.txt). Not every processor that runs it has a
// fused multiply-add.
#include "algo/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

namespace eaglecpp {

namespace {
constexpr int n_lanes = 16;  // number of separate sums, so that vectorising does not change the order of additions

// Keeps the larger of each pair of lanes. Works without a branch, because random values would make it mispredict.
template <int n>
void fold(float * lane) {
    for (int j = 0; j < n; ++j) lane[j] = lane[j] > lane[j + n] ? lane[j] : lane[j + n];
}

float top_of_block(const float * x) {
    float lane[n_lanes];
    std::fill_n(lane, n_lanes, -INFINITY);
    for (int i = 0; i < n_row_block; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    }
    fold<8>(lane);
    fold<4>(lane);
    fold<2>(lane);
    fold<1>(lane);
    return lane[0];
}

// Returns exp(x) for x <= 0 as 2^i * 2^f. A polynomial computes 2^f on [-0.5, 0.5].
float exp_negative(float x) {
    const float t = std::max(-126.0f, x * 1.44269504f);  // std::max with its arguments in this order maps NaN to -126
    const float r = t + 12582912.0f;                     // adding 1.5 * 2^23 rounds to an integer
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
}  // namespace

void block_tops(const float * x, int n, std::vector<float> & tops) {
    const int n_whole = n / n_row_block, n_blocks = (n + n_row_block - 1) / n_row_block;
    tops.resize(n_blocks);
    for (int b = 0; b < n_whole; ++b) tops[b] = top_of_block(x + b * n_row_block);
    if (n_whole == n_blocks) return;
    float top = -INFINITY;
    for (int i = n_whole * n_row_block; i < n; ++i) top = x[i] > top ? x[i] : top;
    tops[n_whole] = top;
}

double sum_exp(const float * x, int n, float max) {
    float lane[n_lanes] = {};
    const int n_whole = n / n_lanes * n_lanes;
    for (int i = 0; i < n_whole; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) lane[j] += exp_negative(x[i + j] - max);
    }
    double sum = 0.0;
    for (float v : lane) sum += v;
    for (int i = n_whole; i < n; ++i) sum += exp_negative(x[i] - max);
    return sum;
}

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
