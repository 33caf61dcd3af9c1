// SPDX-License-Identifier: MIT
#include "algo/costs.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

TEST(between_two_measured_counts_both_must_be_exact) {
    RowCounts counts;
    CHECK(counts.largest(64) == 1 && !counts.allows_any(1, 64) && counts.to_string() == "1");
    for (int n : {16, 2, 5, 3, 8}) counts.set(n, n != 8);
    for (bool is_exact : {true, true}) counts.set(4, is_exact);
    for (int n : {0, 1, 2, 3, 4, 5, 16}) CHECK_MSG(counts.allows(n), std::to_string(n));
    for (int n : {6, 7, 8, 9, 15, 17, 64}) CHECK_MSG(!counts.allows(n), std::to_string(n));
    CHECK(counts.largest(3) == 3 && counts.largest(8) == 5 && counts.largest(64) == 16);
    CHECK(counts.next(0) == 1 && counts.next(4) == 5 && counts.next(5) == 16 && counts.next(16) == 0);
    CHECK(counts.allows_all(5) && !counts.allows_all(6));
    CHECK(counts.allows_any(1, 2) && counts.allows_any(5, 16) && !counts.allows_any(5, 15));
    CHECK(counts.to_string() == "1-5, 16" && counts.points().size() == 6);
    // A size is inexact as soon as one of its batches has different bits.
    for (bool is_exact : {false, true}) counts.set(4, is_exact);
    CHECK(!counts.allows(4) && counts.to_string() == "1-3, 5, 16");
}

static void learn(StepCosts & costs, int n_rows, double ms, int n_times = 4) {
    for (int i = 0; i < n_times; ++i) costs.learn(n_rows, ms);
}

TEST(keeps_the_shape_of_the_curve) {
    StepCosts costs(0.06);
    CHECK(costs.empty() && costs.ms(3) == 0.0);
    for (int i = 0; i < 12; ++i) {
        learn(costs, 4, 112.0, 1);
        learn(costs, 6, 165.0, 1);
        learn(costs, 8, 151.0, 1);
    }
    CHECK_NEAR(costs.ms(4), 112.0, 1.0);
    CHECK_NEAR(costs.ms(6), 165.0, 1.5);
    CHECK_NEAR(costs.ms(8), 151.0, 1.0);
    CHECK(costs.ms(5) > 112.0 && costs.ms(5) < 165.0);
    // The estimate for an unmeasured size is low, so that the planner tries this size.
    CHECK(costs.ms(16) > 151.0 && costs.ms(16) < 2.0 * 151.0);
    CHECK(costs.n_samples(5) == 0 && costs.n_samples(6) > 2);
    CHECK(costs.n_rows_measured() == 8);
}

// A server takes 2^31 samples of one batch size in 83 days, so the count must not overflow.
TEST(the_count_of_samples_is_bounded) {
    StepCosts costs(0.06);
    learn(costs, 4, 112.0, 10000);
    CHECK_MSG(costs.n_samples(4) >= 15 && costs.n_samples(4) < 30, std::to_string(costs.n_samples(4)));
    learn(costs, 4, 100.0, 15);
    CHECK_NEAR(costs.ms(4), 100.0, 1.0);
}

TEST(first_samples_have_little_weight) {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0);
    costs.learn(4, 500.0);  // the first sample includes the time for building graphs
    CHECK(costs.ms(4) < 20.0);
    costs.learn(4, 13.0);
    CHECK_NEAR(costs.ms(4), 13.0, 0.5);
    CHECK(costs.is_tried(4) && !costs.is_tried(8));
    costs.learn(4, 90.0);  // after this stall, two of three samples are bad
    for (int i = 0; i < 12; ++i) costs.learn(4, 13.0);
    CHECK_NEAR(costs.ms(4), 13.0, 2.0);
    costs.learn(8, 40.0);
    costs.learn(8, 41.0);
    CHECK(costs.ms(8) > 30.0);  // after two slow samples, the size counts as expensive
}

// Rounds of other batch sizes show whether the whole machine or only one size is slower.
TEST(a_slower_size_is_distinguished_from_a_slower_machine) {
    Random random(32);
    StepCosts size(0.06, true), machine(0.06, true);
    const auto noise = [&] { return 0.98 + 0.04 * random.real(); };
    for (int i = 0; i < 700; ++i) {
        const int n_rows = i % 10 == 0 ? 1 : i % 5 == 0 ? 2 : 4;
        const double ms = 10.0 + n_rows, factor = i < 300 ? 1.0 : 1.15;
        size.learn(n_rows, ms * noise() * (n_rows == 4 ? factor : 1.0));
        machine.learn(n_rows, ms * noise() * factor);
    }
    CHECK_NEAR(size.slowdown() * size.ms(1), 11.0, 0.5);
    CHECK_NEAR(size.slowdown() * size.ms(2), 12.0, 0.5);
    CHECK_NEAR(size.slowdown() * size.ms(4), 16.1, 0.4);
    CHECK_NEAR(machine.slowdown() * machine.ms(1), 12.65, 0.4);
    CHECK_NEAR(machine.slowdown() * machine.ms(4), 16.1, 0.4);
    CHECK(machine.slowdown() > 1.1);
}

// A batch size that stays unused for long keeps its cost ratio to the size in use. The simulated machine was slow at
// first, and its times have realistic outliers.
TEST(sizes_that_wait_keep_their_ratio) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        Random random(seed);
        StepCosts costs(0.06, true);
        const auto time = [&](int n) {
            const double tail = random.real() < 0.2 ? 0.4 * random.real() : 0.0;
            return (3.0 + 0.4 * (n - 1)) * (0.97 + 0.06 * random.real() + tail);
        };
        for (int i = 0; i < 8; ++i) costs.learn(1, 3.3 * time(1));
        for (int i = 0; i < 400; ++i) costs.learn(1 + i % 4, time(1 + i % 4));
        for (int i = 0; i < 6000; ++i) costs.learn(1, time(1));
        CHECK_NEAR(costs.slowdown() * costs.ms(1), 3.1, 0.3);
        CHECK_NEAR(costs.ms(4) / costs.ms(1), 1.4, 0.14);
    }
}

// The build and capture times are those of an H200 for a model of 8B.
TEST(the_first_batches_of_a_size_measure_the_cost_of_a_change) {
    CostTable table;
    table.assume_change(3.0);
    for (int k = 0; k < 8; ++k) {
        for (int n : {1, 4}) {
            const double usual = n == 1 ? 3.0 : 4.0;
            table.learn_alike(2, 1, n, usual + 1.2);
            table.learn_alike(2, 2, n, usual + (k == 0 ? 90.0 : 4.8));  // the first use of a size loads kernels
            for (int i = 3; i < 6; ++i) table.learn_alike(2, i, n, usual);
        }
    }
    CHECK_NEAR(table.change_ms(), 6.0, 0.3);
    CHECK_NEAR(table.verify(1), 3.0, 0.05);
    CHECK_NEAR(table.verify(4), 4.0, 0.05);
    CostTable loaded;
    CHECK(loaded.set_state(table.state()) && !loaded.set_state({{"change", {-1.0}}}));
    CHECK_NEAR(loaded.change_ms(), table.change_ms(), 0.01);
}

static CostTable example() {
    CostTable table;
    for (int round = 0; round < 6; ++round) {
        for (int n = 1; n <= 8; ++n) table.learn_verify(n, 10.0 + n);
        table.learn_commit(1, 0.8);
        table.learn_commit(3, 1.0);
        table.learn_step(1, 0.7);
        table.learn_step(4, 0.9);
        table.learn_host(false, 0.1);
        table.learn_host(true, 0.4);
    }
    return table;
}

TEST(noise_and_stalls_do_not_count_as_a_slower_machine) {
    Random random(41);
    CostTable table = example();
    for (int i = 0; i < 2000; ++i) {
        const double noise = std::exp(0.25 * 1.7 * (random.real() + random.real() + random.real() - 1.5));
        table.learn_verify(1 + i % 4, (11.0 + i % 4) * noise * (random.real() < 0.02 ? 6.0 : 1.0));
    }
    CHECK_NEAR(table.target_only(), 11.1, 1.0);
    CHECK_NEAR(table.verify(4) / table.verify(1), 14.0 / 11.0, 0.2);
}

TEST(invalid_times_are_ignored) {
    CostTable table = example();
    const LearnedState before = table.state();
    const double inf = std::numeric_limits<double>::infinity();
    for (double ms : {-1.0, 0.0, std::nan(""), inf, -inf, 1e300}) {
        table.learn_verify(1, ms);
        table.learn_commit(1, ms);
        table.learn_step(1, ms);
    }
    table.learn_verify(0, 1.0);
    table.learn_verify(-3, 1.0);
    table.learn_host(true, std::nan(""));
    table.learn_host(true, inf);
    table.learn_verify(8, 18.0 * 50);  // the long time means that the process was suspended
    CHECK(table.state() == before);
}

TEST(survives_a_round_trip) {
    const CostTable table = example();
    CostTable loaded;
    CHECK(loaded.set_state(table.state()));
    for (int n = 1; n <= 8; ++n) CHECK_NEAR(loaded.verify(n), 10.0 + n, 0.3);
    CHECK_NEAR(loaded.step(4), table.step(4), 1e-6);
    CHECK_NEAR(loaded.host(), table.host(), 1e-6);
    // Measurements replace a wrong entry.
    for (int i = 0; i < 4; ++i) loaded.learn_verify(4, 15.0);
    CHECK_NEAR(loaded.verify(4), 15.0, 1.0);
}

// The first times of a size that was never measured must not count as a slower machine.
TEST(the_first_times_of_a_size_do_not_set_the_slowdown) {
    CostTable table;
    CHECK(table.set_state({{"verify", {1.0, 15.0, 2.0, 45.75}}}) && table.is_known(2));
    for (int i = 0; i < 4; ++i) table.learn_verify(3, 150.0);
    CHECK_NEAR(table.verify(1), 15.0, 1.0);
    CHECK_NEAR(table.verify(3), 150.0, 10.0);
}

// The machine was busy while 2, 8 and 11 rows were measured.
TEST(saved_times_above_those_of_other_numbers_of_rows_are_forgotten) {
    CostTable table;
    CHECK(table.set_state({{"verify", {1, 2.5, 2, 7.3, 3, 2.9, 8, 185, 9, 5.7, 11, 24}}, {"level", {1, 0.2, 4, 6.8}}}));
    for (int n = 1; n <= 11; ++n) CHECK(table.is_known(n) == (n == 1 || n == 3 || n == 9));
    CHECK(table.verify(2) < 2.9 && table.verify(8) < 6.0 && table.verify(11) < 8.0 && table.step(4) < 1.0);
}

TEST(damaged_state_is_refused) {
    CostTable table;
    const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
    for (const auto & [name, values] : std::initializer_list<std::pair<const std::string, std::vector<double>>>{
             {"verify", {1, -5}},
             {"verify", {1, 0}},
             {"verify", {0, 5}},
             {"verify", {1e9, 5}},
             {"verify", {nan, 5}},
             {"verify", {1, 1e300}},
             {"verify", {1, nan}},
             {"verify", {1, inf}},
             {"verify", {1}},
             {"level", {1, 2, 3}},
             {"surprise", {1, 5}},
             {"host", {-1, 0}},
             {"host", {1, nan}},
             {"host", {1, 1, 1}},
             {"change", {1, 1}},
         }) {
        CHECK(!table.set_state({{name, values}}));
    }
    CHECK(!table.is_known(1));
}
