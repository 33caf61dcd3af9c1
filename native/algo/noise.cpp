// SPDX-License-Identifier: MIT
// This file is compiled without contraction of a*b+c (native/CMakeLists.txt). A contracted operation rounds once
// instead of twice, so the last bit of the noise would differ between machines.
#include "algo/noise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "algo/topk.h"
#include "base/hash.h"

namespace eaglecpp {

namespace {
constexpr int n_block = n_row_block;  // number of tokens that one comparison can rule out
constexpr double ln2 = 0.693147180559945309417;
constexpr double gumbel_max = 45.1;                   // -log(2^-65), rounded up
constexpr uint64_t one_each = 0x0001000100010001ull;  // a 1 in each 16-bit part
constexpr uint64_t top_bits = 0x8000ull * one_each;

// Returns 2 * atanh(s) = log((1 + s) / (1 - s)) for |s| < 0.1716. The first omitted term of the series is below 1e-18.
double twice_atanh(double s) {
    const double t = s * s;
    double sum = 1.0 / 21.0;
    for (int i = 19; i >= 1; i -= 2) sum = sum * t + 1.0 / i;
    return 2.0 * s * sum;
}

// Returns a mask for the top 16 bits of a token's hash. `gap` is the distance of the token's score without noise to the
// best score. The token can only win if all masked bits are 0: its noise must exceed the gap, which has a probability
// below exp(-gap).
uint64_t coarse_mask(double gap) {
    const int n_bits = gap > 0.0 ? (int)std::min(gap * (1.0 / ln2), 16.0) : 0;
    return 0xFFFF & ~(0xFFFFull >> n_bits);
}
}  // namespace

double portable_log(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, 8);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double m;
    std::memcpy(&m, &bits, 8);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        ++exponent;
    }
    return exponent * ln2 + twice_atanh((m - 1.0) / (m + 1.0));
}

Noise::Noise(uint32_t seed, Pos pos) {
    const uint64_t key = mix(((uint64_t)seed << 32 | (uint32_t)pos) + mix_step);
    coarse_key_ = mix(key + mix_step);
    fine_key_ = mix(key + 2 * mix_step);
}

Noise Noise::second() const {
    return {mix(coarse_key_ ^ mix_step), mix(fine_key_ ^ mix_step)};
}

double Noise::uniform() const {
    return (double)(mix(fine_key_ ^ 0xD1342543DE82EF95ull) >> 11) * 0x1.0p-53;
}

// Returns the top 16 bits of the hashes of the tokens 4 * i to 4 * i + 3, with the first token in the lowest bits.
inline uint64_t Noise::coarse_of_four(uint32_t i) const {
    return mix(coarse_key_ + i * mix_step);
}

inline uint32_t Noise::coarse(Token token) const {
    return (uint32_t)(coarse_of_four((uint32_t)token >> 2) >> (16 * (token & 3))) & 0xFFFF;
}

double Noise::gumbel(Token token) const {
    const uint64_t bits = (uint64_t)coarse(token) << 48 | mix(fine_key_ + (uint32_t)token * mix_step) >> 16;
    // e = -log(1 - w), where w = (bits + 1/2) / 2^64. The value of e is exact to the last bits for w near 0 and near 1.
    double e;
    if (bits >> 63) {
        e = -portable_log(((double)~bits + 0.5) * 0x1.0p-64);
    } else {
        const double w = ((double)bits + 0.5) * 0x1.0p-64;
        e = w < 0.25 ? twice_atanh(w / (2.0 - w)) : -portable_log(1.0 - w);
    }
    return -portable_log(e);
}

double Noise::bound(Token token) const {
    uint32_t c = coarse(token);
    if (c == 0) return gumbel_max;
    // k is the number with 2^(16 - k) <= c < 2^(17 - k), so w >= 2^-k. The noise -log(-log(1 - w)) is at most -log(w).
    int k = 1;
    for (; c < 0x8000; c <<= 1) ++k;
    return k * ln2;
}

void NoisyBest::add(Token token, double score) {
    if (!(score > -1e300) || score + gumbel_max < score_ || score + noise_.bound(token) < score_) return;
    const double noisy = score + noise_.gumbel(token);
    if (noisy > score_ || (noisy == score_ && token < token_)) {
        score_ = noisy;
        token_ = token;
    }
}

// Works in two passes. The first pass finds the largest logit of each block. The second pass compares hashes with the
// best score so far. It begins with the block that has the largest logit.
Token Noise::choose(const float * logits, int n, double scale) const {
    if (n < 1) return 0;
    thread_local std::vector<float> buffer;
    std::vector<float> & tops = buffer;  // avoids a thread-local lookup at each use of `tops`
    block_tops(logits, n, tops);
    const int n_blocks = (int)tops.size();
    NoisyBest best(*this);
    const int first = (int)(std::max_element(tops.begin(), tops.end()) - tops.begin());
    if (!(tops[first] > -INFINITY)) return 0;
    for (int i = first * n_block; i < std::min(n, (first + 1) * n_block); ++i) best.add(i, logits[i] * scale);
    for (int b = 0; b < n_blocks; ++b) {
        const double gap = best.score() - tops[b] * scale;
        if (!(gap < gumbel_max) || b == first) continue;
        // A token of the block can win only if its 16 bits of the hash have a 0 at each of these bits.
        const uint64_t bits = one_each * coarse_mask(gap);
        const int end = std::min(n, (b + 1) * n_block);
        for (int at = b * n_block; at < end; at += 4) {
            const uint64_t four = coarse_of_four((uint32_t)at >> 2) & bits;
            if (!((four - one_each) & ~four & top_bits)) continue;
            for (int i = at; i < std::min(end, at + 4); ++i) {
                if (four >> (16 * (i - at)) << 48 == 0) best.add(i, logits[i] * scale);
            }
        }
    }
    return best.token();
}

}  // namespace eaglecpp
