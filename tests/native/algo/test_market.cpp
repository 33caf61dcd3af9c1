// SPDX-License-Identifier: MIT
#include "algo/market.h"

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

static void looks_behind_a_step() {
    // 5 to 7 rows cost more than 8; greedy climbing would stop at 4
    const CostTable table = table_of({97, 103, 107, 112, 149, 165, 171, 151});
    Market market;
    market.open(table, 1, 7, 97.0, 1, 1.0, 0.0);
    CHECK_NEAR(market.price(3), 15.0 / 97, 0.01);
    const std::vector<float> good = {0.9f, 0.8f, 0.7f, 0.65f, 0.6f, 0.55f, 0.5f};
    CHECK(market.best(good, inf).n == 7);
    const std::vector<float> poor = {0.5f, 0.3f, 0.2f, 0.1f, 0.08f, 0.05f, 0.02f};
    CHECK(market.best(poor, inf).n == 3);
    CHECK(market.best({0.01f, 0.01f}, inf).n == 0);
    CHECK(market.best(good, 20.0 / 97).n == 3);  // what the ledger allows
    CHECK(market.best({}, inf).n == 0);
    Market twice;  // every row may have to be run again
    twice.open(table, 1, 7, 97.0, 1, 2.0, 0.0);
    CHECK_NEAR(twice.price(3), 2.0 * market.price(3), 0.01);
    CHECK(market.best({0.5f, 0.06f}, inf).n == 2 && twice.best({0.5f, 0.06f}, inf).n == 1);
}

// All who wait lose by a row.
static void rows_cost_as_many_as_wait_for_them() {
    Market one, four;
    one.open(table_of({10, 11, 12, 13, 14, 15, 16, 17}), 4, 3, 13.0, 1, 1.0, 0.0);
    four.open(table_of({10, 11, 12, 13, 14, 15, 16, 17}), 4, 3, 13.0, 4, 1.0, 0.0);
    CHECK_NEAR(four.price(2), 4.0 * one.price(2), 1e-9);
    CHECK(one.best({0.2f, 0.2f}, inf).n == 2 && four.best({0.2f, 0.2f}, inf).n == 0);
}

static void an_untried_size_may_cost_more_than_the_ledger_has() {
    CostTable table;
    for (int i = 0; i < 4; ++i) table.learn_verify(1, 10.0);
    for (int i = 0; i < 4; ++i) table.learn_verify(2, 11.0);
    const std::vector<float> worth = {0.9f, 0.8f, 0.7f};
    Market market;
    market.open(table, 1, 3, 10.0, 1, 1.0, /*first_use=*/4.9);
    CHECK(market.best(worth, 1.0).n == 1);  // 2 rows are known to build nothing
    CHECK(market.best(worth, 10.0).n == 3);
}

static void a_batch_that_is_kept_has_room_for_nothing() {
    Market market;
    market.open(table_of({10, 11, 12, 13, 14, 15}), 1, 5, 10.0, 1, 1.0, 0.0);
    market.fix_rows(4);
    CHECK(market.n_max() == 3 && market.price(3) == 0.0);
    CHECK(market.best({0.9f, 0.1f, 0.01f, 0.9f}, 0.0).n == 3);
    market.fix_rows(1);
    CHECK(market.best({0.9f}, inf).n == 0);
}

static void only_exact_numbers_of_rows_are_for_sale() {
    const CostTable table = table_of({10, 11, 12, 13, 14, 15, 16, 17});
    RowCounts exact;
    for (int n = 2; n <= 8; ++n) exact.set(n, n == 4 || n == 8);
    Market market;
    market.open(table, 1, 2, 10.0, 1, 1.0, 0.0);
    market.keep_exact(exact, table);
    CHECK(market.best({0.9f, 0.8f}, inf).n == 0);        // two or three rows are not exact
    CHECK(market.best({0.9f, 0.8f, 0.7f}, inf).n == 3);  // the next that are, though more than were asked for
}

int main() {
    looks_behind_a_step();
    rows_cost_as_many_as_wait_for_them();
    an_untried_size_may_cost_more_than_the_ledger_has();
    a_batch_that_is_kept_has_room_for_nothing();
    only_exact_numbers_of_rows_are_for_sale();
    return result();
}
