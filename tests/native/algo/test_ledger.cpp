// SPDX-License-Identifier: MIT
#include "algo/planner.h"

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

TEST(plain_rounds_fill_it_slowly_up_to_the_cap) {
    Ledger ledger;
    CHECK(ledger.balance() == 4.0 && ledger.covers(4.0) && !ledger.covers(4.1));
    for (int i = 0; i < 100; ++i) ledger.settle(1.0, 1.0);
    CHECK_NEAR(ledger.balance(), 5.2, 1e-9);
    for (int i = 0; i < 10000; ++i) ledger.settle(3.0, 1.5);
    CHECK(ledger.balance() == 8.0 && ledger.covers(12.0));  // the cost 12 is above the cap
}

TEST(first_uses_are_free_up_to_a_point_and_once) {
    Ledger::Options options;
    options.first_uses = 3.0;
    Ledger ledger(options);
    ledger.settle(1.0, 3.0, 2.0);
    CHECK_NEAR(ledger.balance(), 4.012, 1e-9);
    ledger.settle(1.0, 3.0, 2.0);
    CHECK_NEAR(ledger.balance(), 3.024, 1e-9);
    ledger.settle(1.0, 3.0, 2.0);
    CHECK_NEAR(ledger.balance(), 1.036, 1e-9);
}

// The ledger guarantees a bound on the loss. Even if the planner spends all that the ledger covers and every draft is
// rejected, the loss stays within the bound in every window and from any state.
TEST(every_window_keeps_the_bound) {
    Random random(61);
    for (int run = 0; run < 20; ++run) {
        Ledger ledger;
        std::vector<double> tokens{0.0}, cost{0.0};
        for (int round = 0; round < 2000; ++round) {
            const bool is_lucky = run % 2 == 0 && round < 700;
            const double n = is_lucky ? random.integer(1, 5) : 1.0;
            double extra = 3.0 * random.real();
            if (!ledger.covers(extra)) extra = 0.0;
            ledger.settle(n, 1.0 + extra);
            CHECK(ledger.balance() >= 0.0);
            tokens.push_back(tokens.back() + n);
            cost.push_back(cost.back() + 1.0 + extra);
        }
        for (size_t from = 0; from < tokens.size(); from += 7) {
            for (size_t to = from + 1; to < tokens.size(); to += 13) {
                const double m = tokens[to] - tokens[from];
                CHECK(cost[to] - cost[from] <= 1.012 * m + 8.0 + 1e-6);
                if (m >= 512) CHECK(m / (cost[to] - cost[from]) >= 0.97);
            }
        }
    }
}
