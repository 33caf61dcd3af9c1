// SPDX-License-Identifier: MIT
#include "algo/noise.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "../check.h"
#include "algo/row_loops.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

// The noise is part of what a seed means: another value here is another text for every seed.
static void has_known_values() {
    CHECK(Noise(1, 0).gumbel(0) == 0x1.1d3fde1395831p+1);
    CHECK(Noise(1, 100).gumbel(4711) == -0x1.f37a6798b7cd8p-1);
    CHECK(Noise(0xFFFFFFFF, 1 << 20).gumbel(262143) == 0x1.dbb7f5656be58p-1);
    CHECK(Noise(1, 100).second().gumbel(4711) == 0x1.df33085886932p+1);
    CHECK(Noise(1, 100).uniform() == 0x1.e194663ce4b94p-3);
}

static void logarithm_is_right() {
    Random random(1);
    for (int i = 0; i < 200000; ++i) {
        const double x = std::exp(80.0 * random.real() - 45.0);
        CHECK(std::fabs(portable_log(x) - std::log(x)) <= 3e-16 * std::max(1.0, std::fabs(std::log(x))));
    }
    for (double x : {1.0, 1.0 + 1e-15, 1.0 - 1e-15, 0.5, 2.0, 0x1.0p-65, 1e300, 1e-300}) {
        CHECK_NEAR(portable_log(x), std::log(x), 3e-16 * std::max(1.0, std::fabs(std::log(x))));
    }
}

static void bound_holds() {
    for (int i = 0; i < 300000; ++i) {
        const Noise noise(7, i / 1000);
        const double g = noise.gumbel(i), bound = noise.bound(i);
        CHECK(g <= bound && g > -3.9 && bound <= 45.1);
        if (g > 1.0 && g < 8.0) CHECK(bound < g + 0.9);
    }
}

// what a device is given of it
static void first_bits_give_the_noise() {
    const Tokens tokens{5, 3, 100, 101, 4711};
    std::vector<uint16_t> some(tokens.size()), all(20000);
    for (int pos = 0; pos < 20; ++pos) {
        const Noise noise(3, pos);
        noise.coarse(tokens.data(), (int)tokens.size(), some.data());
        noise.coarse(nullptr, (int)all.size(), all.data());
        for (size_t i = 0; i < tokens.size(); ++i) CHECK(some[i] == all[tokens[i]]);
        for (int i = 0; i < (int)all.size(); ++i) {
            const double gap = std::fabs(noise.gumbel(i) - Noise::gumbel_near(all[i]));
            CHECK(all[i] < 64 || noise.gumbel(i) < -2.0 || gap < 0.01);
        }
    }
}

// --- frequencies ---------------------------------------------------------------------------------------------------

// upper end of what chi-square with n degrees of freedom exceeds once in a million (Wilson and Hilferty)
static double chi2_most(int n) {
    const double a = 2.0 / (9.0 * n);
    return n * std::pow(1.0 - a + 4.753 * std::sqrt(a), 3.0);
}

static void check_counts(const std::vector<int> & counts, const std::vector<double> & p, const char * what) {
    double n = 0.0, chi2 = 0.0;
    int cells = 0;
    for (int c : counts) n += c;
    double rest_p = 0.0, rest = 0.0;  // cells too rare to count alone
    for (size_t i = 0; i < p.size(); ++i) {
        if (n * p[i] < 10.0) {
            rest_p += p[i];
            rest += counts[i];
            continue;
        }
        chi2 += (counts[i] - n * p[i]) * (counts[i] - n * p[i]) / (n * p[i]);
        ++cells;
    }
    if (n * rest_p >= 5.0) {
        chi2 += (rest - n * rest_p) * (rest - n * rest_p) / (n * rest_p);
        ++cells;
    } else {
        CHECK_MSG(rest < 5.0 * (n * rest_p) + 10.0, strf("%s: %g of tokens of chance %g", what, rest, rest_p));
    }
    CHECK_MSG(chi2 < chi2_most(cells - 1), strf("%s: chi2 %.1f of %d cells", what, chi2, cells));
}

static std::vector<double> softmax(const std::vector<float> & logits, double scale) {
    std::vector<double> p;
    double sum = 0.0;
    for (float v : logits) p.push_back(std::exp(v * scale)), sum += p.back();
    for (double & v : p) v /= sum;
    return p;
}

// u = exp(-exp(-g)) in 64 cells, over tokens, positions and seeds, and pairs of neighbours in 16 x 16 cells
static void values_are_independent() {
    const auto u = [](uint32_t seed, Pos pos, Token token) {
        return std::exp(-std::exp(-Noise(seed, pos).gumbel(token)));
    };
    const int n = 400000;
    for (int axis = 0; axis < 3; ++axis) {
        for (int step : {1, 2, 3, 4, 7, 64, 1024}) {
            std::vector<int> cells(64, 0), pairs(256, 0);
            for (int i = 0; i < n; ++i) {
                const auto at = [&](int x) { return u(axis == 2 ? x : 5, axis == 1 ? x : 9, axis == 0 ? x : 11); };
                const double a = at(i), b = at(i + step);
                ++cells[(int)(a * 64)];
                ++pairs[(int)(a * 16) * 16 + (int)(b * 16)];
            }
            check_counts(cells, std::vector<double>(64, 1.0 / 64), strf("axis %d", axis).c_str());
            check_counts(pairs, std::vector<double>(256, 1.0 / 256), strf("axis %d step %d", axis, step).c_str());
        }
    }
    std::vector<int> seconds(256, 0), uniforms(256, 0);
    for (int i = 0; i < n; ++i) {
        const Noise noise(3, i);
        const double a = std::exp(-std::exp(-noise.gumbel(17)));
        ++seconds[(int)(a * 16) * 16 + (int)(std::exp(-std::exp(-noise.second().gumbel(17))) * 16)];
        ++uniforms[(int)(a * 16) * 16 + (int)(noise.uniform() * 16)];
    }
    check_counts(seconds, std::vector<double>(256, 1.0 / 256), "second draw");
    check_counts(uniforms, std::vector<double>(256, 1.0 / 256), "uniform");
}

// the rare large noises decide about tokens of small chance
static void tails_are_right() {
    const int n = 4000000;
    for (double g : {4.0, 6.0, 8.0, 10.0, 12.0}) {
        int found = 0;
        for (int i = 0; i < n; ++i) {
            const Noise noise(11, i >> 12);
            found += noise.bound(i & 4095) >= g && noise.gumbel(i & 4095) > g;
        }
        const double expected = n * -std::expm1(-std::exp(-g));
        CHECK_MSG(std::fabs(found - expected) < 5.0 * std::sqrt(expected) + 1.0,
                  strf("beyond %g: %d, expected %g", g, found, expected));
    }
}

static std::vector<float> some_logits(Random & random, int n, double spread) {
    std::vector<float> x(n);
    for (float & v : x) {
        v = (float)(spread * (random.real() + random.real() + random.real() - 1.5));
    }
    return x;
}

static void choice_has_the_right_frequencies() {
    Random random(5);
    for (double spread : {0.0, 2.0, 10.0}) {
        for (int n : {2, 40, 300}) {
            for (double scale : {1.0, 1.25}) {
                const std::vector<float> logits = some_logits(random, n, spread);
                std::vector<int> over_positions(n, 0), over_seeds(n, 0);
                for (int i = 0; i < 200000; ++i) {
                    ++over_positions[Noise(1, i).choose(logits.data(), n, scale)];
                    ++over_seeds[Noise(i, 100).choose(logits.data(), n, scale)];
                }
                const std::vector<double> p = softmax(logits, scale);
                check_counts(over_positions, p, strf("positions, spread %g, n %d", spread, n).c_str());
                check_counts(over_seeds, p, strf("seeds, spread %g, n %d", spread, n).c_str());
            }
        }
    }
}

static void choices_at_neighbouring_positions_are_independent() {
    const std::vector<float> logits = {0.0f, 1.0f, -0.5f, 0.3f};
    const std::vector<double> p = softmax(logits, 1.0);
    std::vector<double> joint;
    for (double a : p) {
        for (double b : p) joint.push_back(a * b);
    }
    std::vector<int> positions(16, 0), seeds(16, 0);
    for (int i = 0; i < 200000; ++i) {
        const auto choice = [&](uint32_t seed, Pos pos) { return Noise(seed, pos).choose(logits.data(), 4, 1.0); };
        ++positions[choice(3, i) * 4 + choice(3, i + 1)];
        ++seeds[choice(i, 50) * 4 + choice(i + 1, 50)];
    }
    check_counts(positions, joint, "pairs of positions");
    check_counts(seeds, joint, "pairs of seeds");
}

static void choice_is_the_argmax() {
    Random random(9);
    for (int round = 0; round < 3000; ++round) {
        const int n = random.integer(1, 700);
        std::vector<float> logits = some_logits(random, n, random.real() < 0.3 ? 0.1 : 30.0 * random.real());
        if (round % 3 == 0) logits[random.integer(0, n - 1)] = -INFINITY;
        if (round % 5 == 0) logits[random.integer(0, n - 1)] = std::numeric_limits<float>::quiet_NaN();
        const Noise noise(round, round * 7);
        const double scale = 0.3 + 2.0 * random.real();
        int best = -1;
        for (int i = 0; i < n; ++i) {
            if (!(logits[i] > -INFINITY)) continue;
            const double score = logits[i] * scale + noise.gumbel(i);
            if (best < 0 || score > logits[best] * scale + noise.gumbel(best)) best = i;
        }
        CHECK(noise.choose(logits.data(), n, scale) == std::max(best, 0));
        for (int way = 0; way < n_row_ways(); ++way) {
            CHECK(noise.choose(logits.data(), n, scale, way) == std::max(best, 0));
        }
        NoisyBest one_by_one(noise);
        for (int i = n - 1; i >= 0; --i) one_by_one.add(i, logits[i] * scale);
        CHECK(one_by_one.token() == best);
    }
}

// The choices of whole vocabularies as they were when the draw was defined: whatever makes it faster must not move
// them.
static void large_choices_stay() {
    Random random(11);
    uint64_t sum = 0;
    for (int n : {32000, 128256, 262144}) {
        for (double spread : {0.0, 2.0, 8.0}) {
            const std::vector<float> logits = some_logits(random, n, spread);
            for (int pos = 0; pos < 20; ++pos) {
                const Noise noise(77, pos);
                NoisyBest best(noise);
                for (int i = 0; i < n; ++i) best.add(i, logits[i] * 1.25);
                for (int way = 0; way < n_row_ways(); ++way) {
                    CHECK(noise.choose(logits.data(), n, 1.25, way) == best.token());
                }
                sum = sum * 1000003 + (uint64_t)best.token();
            }
        }
    }
    CHECK_MSG(sum == 17306460652214516601u, strf("%llu", (unsigned long long)sum));
}

int main() {
    has_known_values();
    logarithm_is_right();
    bound_holds();
    first_bits_give_the_noise();
    values_are_independent();
    tails_are_right();
    choice_has_the_right_frequencies();
    choices_at_neighbouring_positions_are_independent();
    choice_is_the_argmax();
    large_choices_stay();
    return result();
}
