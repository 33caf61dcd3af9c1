// SPDX-License-Identifier: MIT
// Compiled without contraction of a*b+c (native/CMakeLists.txt): a fused operation rounds once instead of twice, and
// the noise would differ in its last bit between machines.
#include "algo/noise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace eaglecpp {

namespace {
constexpr uint64_t gamma = 0x9E3779B97F4A7C15ull;  // SplitMix64's step
constexpr int n_block = 128;                       // tokens told apart by one comparison
constexpr int n_lanes = 16;                        // kept apart so that the compiler vectorises
constexpr double ln2 = 0.693147180559945309417;
constexpr double most = 45.1;  // -log(2^-65), rounded up

// SplitMix64's output function (Vigna; Stafford's variant 13 of MurmurHash3's finaliser)
uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// 2 * atanh(s) for |s| < 0.1716: log((1 + s) / (1 - s)). The first term left out is below 1e-18.
double twice_atanh(double s) {
    const double t = s * s;
    double sum = 1.0 / 21.0;
    for (int i = 19; i >= 1; i -= 2) sum = sum * t + 1.0 / i;
    return 2.0 * s * sum;
}

// Bits of the 16 that are 0 in every token that may win with a score `gap` below the best one: its noise must exceed
// the gap, and the chance of that is below exp(-gap).
uint64_t coarse_mask(double gap) {
    const int n_bits = gap > 0.0 ? (int)std::min(gap * (1.0 / ln2), 16.0) : 0;
    return 0xFFFF & ~(0xFFFFull >> n_bits);
}
// the larger of each pair of lanes, without a branch that random numbers would mislead
template <int n>
void fold(float * lane) {
    for (int j = 0; j < n; ++j) lane[j] = lane[j] > lane[j + n] ? lane[j] : lane[j + n];
}

// the largest of n_block numbers; NaN never is, unless all are
float top_of_block(const float * x) {
    float lane[n_lanes];
    std::fill_n(lane, n_lanes, -INFINITY);
    for (int i = 0; i < n_block; i += n_lanes) {
        for (int j = 0; j < n_lanes; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    }
    fold<8>(lane);
    fold<4>(lane);
    fold<2>(lane);
    fold<1>(lane);
    return lane[0];
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
    const uint64_t key = mix(((uint64_t)seed << 32 | (uint32_t)pos) + gamma);
    coarse_key_ = mix(key + gamma);
    fine_key_ = mix(key + 2 * gamma);
}

Noise Noise::second() const {
    return {mix(coarse_key_ ^ gamma), mix(fine_key_ ^ gamma)};
}

double Noise::uniform() const {
    return (double)(mix(fine_key_ ^ 0xD1342543DE82EF95ull) >> 11) * 0x1.0p-53;
}

// 16 bits each of tokens 4 * i to 4 * i + 3, lowest first
uint64_t Noise::coarse_of_four(uint32_t i) const {
    return mix(coarse_key_ + i * gamma);
}

uint32_t Noise::coarse(Token token) const {
    return (uint32_t)(coarse_of_four((uint32_t)token >> 2) >> (16 * (token & 3))) & 0xFFFF;
}

double Noise::gumbel(Token token) const {
    return gumbel(token, coarse(token));
}

double Noise::gumbel(Token token, uint32_t coarse) const {
    const uint64_t bits = (uint64_t)coarse << 48 | mix(fine_key_ + (uint32_t)token * gamma) >> 16;
    // e = -log(1 - w), w = (bits + 1/2) / 2^64, exact to the last bits at both ends
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
    if (c == 0) return most;
    // w >= 2^-k with c < 2^(17 - k), and -log(-log(1 - w)) <= -log(w)
    int k = 1;
    for (; c < 0x8000; c <<= 1) ++k;
    return k * ln2;
}

void NoisyBest::add(Token token, double score) {
    if (!(score > -1e300) || score + most < score_ || score + noise_.bound(token) < score_) return;
    const double noisy = score + noise_.gumbel(token);
    if (noisy > score_ || (noisy == score_ && token < token_)) {
        score_ = noisy;
        token_ = token;
    }
}

// Two passes: the largest logit of every block, then hashes against the best found so far, which begins with the
// largest of all.
Token Noise::choose(const float * logits, int n, double scale) const {
    thread_local std::vector<float> buffer;
    std::vector<float> & tops = buffer;  // a thread's variable is looked up at each use
    tops.clear();
    for (int at = 0; at < n; at += n_block) {
        const int size = std::min(n_block, n - at);
        float top = -INFINITY;
        if (size == n_block) {
            top = top_of_block(logits + at);
        } else {
            for (int i = at; i < n; ++i) top = logits[i] > top ? logits[i] : top;
        }
        tops.push_back(top);
    }
    NoisyBest best(*this);
    const int first = (int)(std::max_element(tops.begin(), tops.end()) - tops.begin());
    if (n < 1 || !(tops[first] > -INFINITY)) return 0;
    for (int i = first * n_block; i < std::min(n, (first + 1) * n_block); ++i) best.add(i, logits[i] * scale);
    for (int b = 0; b < (int)tops.size(); ++b) {
        const double gap = best.score() - tops[b] * scale;
        if (!(gap < most) || b == first) continue;
        // a token of the block can win only if all of these bits of its 16 are 0
        const uint64_t bits = 0x0001000100010001ull * coarse_mask(gap);
        uint64_t four[n_block / 4], zeros = 0;
        for (int i = 0; i < n_block / 4; ++i) {
            four[i] = coarse_of_four((uint32_t)(b * n_block / 4 + i)) & bits;
            zeros |= (four[i] - 0x0001000100010001ull) & ~four[i];
        }
        if (!(zeros & 0x8000800080008000ull)) continue;
        const int size = std::min(n_block, n - b * n_block);
        for (int i = 0; i < size; ++i) {
            if (four[i / 4] >> (16 * (i % 4)) << 48 == 0) best.add(b * n_block + i, logits[b * n_block + i] * scale);
        }
    }
    return best.token();
}

}  // namespace eaglecpp
