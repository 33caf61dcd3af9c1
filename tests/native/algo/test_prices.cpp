// SPDX-License-Identifier: MIT
#include "algo/costs.h"

#include <algorithm>

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static constexpr double inf = 1e18;

// a table that knows these times of 1, 2, ... rows
static CostTable table_of(const std::vector<double> & ms) {
    CostTable table;
    for (int i = 0; i < 20; ++i) {
        for (size_t n = 1; n <= ms.size(); ++n) table.learn_verify((int)n, ms[n - 1]);
    }
    return table;
}

static Prices prices_of(const CostTable & table, int n_nodes_max) {
    Prices prices;
    prices.set(table, 1, n_nodes_max, inf);
    return prices;
}

static void looks_behind_a_step() {
    // 5 to 7 rows cost more than 8; greedy climbing would stop at 4
    const CostTable table = table_of({97, 103, 107, 112, 149, 165, 171, 151});
    const Prices prices = prices_of(table, 7);
    CHECK_NEAR(prices.ms(3), 15.0, 1.0);
    const std::vector<float> good = {0.9f, 0.8f, 0.7f, 0.65f, 0.6f, 0.55f, 0.5f};
    CHECK(prices.best(good, 1.0 / 97, inf).n == 7);
    const std::vector<float> poor = {0.5f, 0.3f, 0.2f, 0.1f, 0.08f, 0.05f, 0.02f};
    CHECK(prices.best(poor, 1.0 / 97, inf).n == 3);
    CHECK(prices.best({0.01f, 0.01f}, 1.0 / 97, inf).n == 0);
    CHECK(prices.best(good, 1.0 / 97, 20.0).n == 3);  // what the ledger allows
    CHECK(prices.best({}, 1.0 / 97, inf).n == 0);
    Prices twice;  // every row may have to be run again
    twice.set(table, 1, 7, inf, nullptr, 1, 2.0);
    CHECK_NEAR(twice.ms(3), 2.0 * prices.ms(3), 1.0);
    CHECK(prices.best({0.5f, 0.06f}, 1.0 / 97, inf).n == 2 && twice.best({0.5f, 0.06f}, 1.0 / 97, inf).n == 1);
}

static void equals_brute_force() {
    Random random(21);
    for (int round = 0; round < 300; ++round) {
        std::vector<double> ms(8);
        for (double & v : ms) v = 10.0 * (1.0 + random.real());
        ms[0] = 10.0;
        const CostTable table = table_of(ms);
        const Prices prices = prices_of(table, 7);
        std::vector<float> p(7);
        for (float & v : p) v = (float)random.real();
        std::sort(p.rbegin(), p.rend());
        const double lambda = (1.0 + random.real()) / 10.0, most = 20.0 * random.real();
        int best_n = 0;
        double best = 0.0, sum = 0.0;
        for (int n = 1; n <= 7; ++n) {
            sum += p[n - 1];
            const double value = sum - lambda * prices.ms(n);
            if (value > best && prices.ms(n) <= most) best = value, best_n = n;
        }
        const Offer offer = prices.best(p, lambda, most);
        CHECK(offer.n == best_n);
        CHECK_NEAR(offer.value, best, 1e-9);
        // more likely nodes are never worth less
        std::vector<float> more = p;
        const int i = random.integer(0, 6);
        more[i] = i == 0 ? 1.0f : more[i - 1];
        CHECK(prices.best(more, lambda, most).value >= offer.value);
    }
}

static void an_untried_size_may_cost_more_than_the_ledger_has() {
    CostTable table;
    for (int i = 0; i < 4; ++i) table.learn_verify(1, 10.0);
    for (int i = 0; i < 4; ++i) table.learn_verify(2, i == 0 ? 60.0 : 11.0);  // building graphs took 49 ms
    Prices prices;
    prices.set(table, 1, 3, 0.0);
    const std::vector<float> p = {0.9f, 0.8f, 0.7f};
    CHECK(prices.best(p, 0.1, 10.0).n == 1);  // 2 rows are known to build nothing
    CHECK(prices.best(p, 0.1, 100.0).n == 3);
    prices.set(table, 1, 3, 100.0);
    CHECK(prices.best(p, 0.1, 10.0).n == 3);  // the allowance pays
}

int main() {
    looks_behind_a_step();
    equals_brute_force();
    an_untried_size_may_cost_more_than_the_ledger_has();
    return result();
}
