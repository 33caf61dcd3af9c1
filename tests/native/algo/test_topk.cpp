// SPDX-License-Identifier: MIT
#include "algo/topk.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static std::vector<float> random_logits(Random & random, int n, bool has_ties) {
    std::vector<float> x(n);
    for (float & v : x) v = has_ties ? (float)random.integer(-3, 3) : (float)(20.0 * random.real() - 10.0);
    return x;
}

static double slow_lse(const std::vector<float> & x) {
    const double max = *std::max_element(x.begin(), x.end());
    double sum = 0.0;
    for (float v : x) sum += std::exp((double)v - max);
    return max + std::log(sum);
}

TEST(agrees_with_sorting) {
    Random random(6);
    Largest largest;
    for (int n : {1, 2, 15, 16, 17, 31, 100, 127, 128, 129, 300, 5000}) {
        for (bool has_ties : {false, true}) {
            std::vector<float> x = random_logits(random, n, has_ties);
            if (n > 100) x[random.integer(0, n - 1)] = -std::numeric_limits<float>::infinity();
            std::vector<int> order(n);
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
            CHECK(argmax(x.data(), n) == order[0]);
            CHECK_NEAR(log_sum_exp(x.data(), n), slow_lse(x), 1e-4);
            for (int k : {0, 1, 2, 8, 40, 6000}) {
                const std::vector<int> wanted(order.begin(), order.begin() + std::min(k, n));
                CHECK(largest.of(x.data(), n, k) == wanted);
                const std::vector<Candidate> best = top_k(x.data(), n, k, nullptr);
                if (!CHECK(best.size() == wanted.size())) continue;
                for (size_t i = 0; i < best.size() && x[wanted[i]] > -100.0f; ++i) {
                    CHECK(best[i].token == wanted[i]);
                    CHECK_NEAR(best[i].logp, x[wanted[i]] - slow_lse(x), 1e-4);
                }
            }
        }
    }
}

TEST(a_broken_logit_adds_nothing_to_a_sum) {
    std::vector<float> x(300, 10.0f);
    // the first NaN is inside a block, and the second NaN comes after the last block
    x[3] = x[299] = std::numeric_limits<float>::quiet_NaN();
    CHECK_NEAR(sum_exp(x.data(), (int)x.size(), 10.0f), 298.0, 1e-3);
}

TEST(survives_masked_and_broken_rows) {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    const float masked[] = {-inf, 1.0f, -inf, 0.0f};
    const std::vector<Candidate> best = top_k(masked, 4, 4, nullptr);
    CHECK(best[0].token == 1 && best[1].token == 3 && best[2].logp == -inf);
    const float none[] = {-inf, -inf};
    CHECK(log_sum_exp(none, 2) == -inf);
    const float broken[] = {nan, nan, nan};
    CHECK(argmax(broken, 3) == 0 && top_k(broken, 3, 2, nullptr).size() <= 2);
    std::vector<float> one(300, nan);
    one[250] = 1.0f;
    CHECK(Largest().of(one.data(), 300, 2) == std::vector<int>{250});
}
