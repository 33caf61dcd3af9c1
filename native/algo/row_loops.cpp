// SPDX-License-Identifier: MIT
// This file is compiled without contraction of a*b+c (native/CMakeLists.txt). Not every processor that runs it has a
// fused multiply-add.
#include "algo/row_loops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/hash.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define EAGLECPP_INLINE inline __attribute__((always_inline))
#else
#define EAGLECPP_INLINE inline
#endif

namespace eaglecpp {

namespace {
constexpr int n_lanes = 16;  // number of separate sums, so that vectorising does not change the order of additions

// Keeps the larger of each pair of lanes. Works without a branch, because random values would make it mispredict.
template <int n>
EAGLECPP_INLINE void fold(float * lane) {
    for (int j = 0; j < n; ++j) lane[j] = lane[j] > lane[j + n] ? lane[j] : lane[j + n];
}

EAGLECPP_INLINE float top_of_block(const float * x) {
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

EAGLECPP_INLINE void tops_of_blocks(const float * x, int n_blocks, float * tops) {
    for (int b = 0; b < n_blocks; ++b) tops[b] = top_of_block(x + b * n_row_block);
}

// Returns exp(x) for x <= 0 as 2^i * 2^f. A polynomial computes 2^f on [-0.5, 0.5].
EAGLECPP_INLINE float exp_negative(float x) {
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

// Adds exp(x[i] - max) for all i to the lanes. n must be a multiple of n_lanes.
EAGLECPP_INLINE void add_exps(const float * x, int n, float max, float * lane) {
    for (int i = 0; i < n; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) lane[j] += exp_negative(x[i + j] - max);
    }
}

EAGLECPP_INLINE uint64_t zeros_of_block(uint64_t key, uint64_t first, uint64_t bits) {
    uint64_t zeros = 0;
    for (uint64_t i = 0; i < n_row_block / 4; ++i) {
        const uint64_t four = mix(key + (first + i) * mix_step) & bits;
        zeros |= (four - one_each) & ~four;
    }
    return zeros & top_bits;
}

struct Loops {
    void (*tops)(const float * x, int n_blocks, float * tops);
    void (*exps)(const float * x, int n, float max, float * lane);
    ZerosInBlock zeros;
};

#define EAGLECPP_ROW_LOOPS(name, how)                                        \
    how void tops_##name(const float * x, int n_blocks, float * tops) {      \
        tops_of_blocks(x, n_blocks, tops);                                   \
    }                                                                        \
    how void exps_##name(const float * x, int n, float max, float * lane) {  \
        add_exps(x, n, max, lane);                                           \
    }                                                                        \
    how uint64_t zeros_##name(uint64_t key, uint64_t first, uint64_t bits) { \
        return zeros_of_block(key, first, bits);                             \
    }                                                                        \
    constexpr Loops name{tops_##name, exps_##name, zeros_##name};

EAGLECPP_ROW_LOOPS(portable, )
#if defined(__GNUC__) && defined(__x86_64__)
EAGLECPP_ROW_LOOPS(avx2, __attribute__((target("avx2"))))
EAGLECPP_ROW_LOOPS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

// Returns the versions of the loops that this processor can run, the fastest version last.
const std::vector<Loops> & loops() {
    static const std::vector<Loops> all = [] {
        std::vector<Loops> out{portable};
#if defined(__GNUC__) && defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx2")) out.push_back(avx2);
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            out.push_back(avx512);
        }
#endif
        return out;
    }();
    return all;
}

const Loops & loops_of(int way) {
    return way < 0 ? loops().back() : loops()[way];
}
}  // namespace

int n_row_ways() {
    return (int)loops().size();
}

void block_tops(const float * x, int n, std::vector<float> & tops, int way) {
    const int n_whole = n / n_row_block, n_blocks = (n + n_row_block - 1) / n_row_block;
    tops.resize(n_blocks);
    loops_of(way).tops(x, n_whole, tops.data());
    if (n_whole == n_blocks) return;
    float top = -INFINITY;
    for (int i = n_whole * n_row_block; i < n; ++i) top = x[i] > top ? x[i] : top;
    tops[n_whole] = top;
}

ZerosInBlock zeros_in_block(int way) {
    return loops_of(way).zeros;
}

double sum_exp(const float * x, int n, float max, int way) {
    float lane[n_lanes] = {};
    const int n_whole = n / n_lanes * n_lanes;
    loops_of(way).exps(x, n_whole, max, lane);
    double sum = 0.0;
    for (float v : lane) sum += v;
    for (int i = n_whole; i < n; ++i) sum += exp_negative(x[i] - max);
    return sum;
}

}  // namespace eaglecpp
