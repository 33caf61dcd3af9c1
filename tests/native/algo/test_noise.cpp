// SPDX-License-Identifier: MIT
#include "algo/noise.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

// Sampling uses this noise. If a value changed, every seed would produce another text.
TEST(has_known_values) {
    CHECK(Noise(1, 0).gumbel(0) == 0x1.1d3fde1395831p+1);
    CHECK(Noise(1, 100).gumbel(4711) == -0x1.f37a6798b7cd8p-1);
    CHECK(Noise(0xFFFFFFFF, 1 << 20).gumbel(262143) == 0x1.dbb7f5656be58p-1);
    CHECK(Noise(1, 100).second().gumbel(4711) == 0x1.df33085886932p+1);
    CHECK(Noise(1, 100).uniform() == 0x1.e194663ce4b94p-3);
}

TEST(choice_is_the_argmax) {
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
        NoisyBest one_by_one(noise);
        for (int i = n - 1; i >= 0; --i) one_by_one.add(i, logits[i] * scale);
        CHECK(one_by_one.token() == best);
    }
}

// The first version chose these tokens over whole vocabularies. Optimisations must not change the choices.
TEST(large_choices_stay) {
    Random random(11);
    uint64_t sum = 0;
    for (int n : {32000, 128256, 262144}) {
        for (double spread : {0.0, 2.0, 8.0}) {
            const std::vector<float> logits = some_logits(random, n, spread);
            for (int pos = 0; pos < 20; ++pos) {
                const Noise noise(77, pos);
                NoisyBest best(noise);
                for (int i = 0; i < n; ++i) best.add(i, logits[i] * 1.25);
                CHECK(noise.choose(logits.data(), n, 1.25) == best.token());
                sum = sum * 1000003 + (uint64_t)best.token();
            }
        }
    }
    CHECK_MSG(sum == 17306460652214516601u, strf("%llu", (unsigned long long)sum));
}
