// SPDX-License-Identifier: MIT
#include "algo/costs.h"

#include <utility>

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static void learn(StepCosts & costs, int n_rows, double ms, int n_times = 4) {
    for (int i = 0; i < n_times; ++i) costs.learn(n_rows, ms);
}

static void buckets_cover_every_row_count() {
    for (int n = 1; n < 600; ++n) {
        const int b = StepCosts::bucket_of(n);
        CHECK(StepCosts::rows_of(b) >= n && (b == 0 || StepCosts::rows_of(b - 1) < n));
    }
    CHECK(StepCosts::bucket_of(0) == 0 && StepCosts::bucket_of(-5) == 0);
    CHECK(StepCosts::bucket_of(1 << 30) == StepCosts::n_buckets - 1);
}

static void keeps_steps_and_dips() {
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
    CHECK(costs.ms(16) > 151.0 && costs.ms(16) < 2.0 * 151.0);  // guessed on the cheap side, so that it is tried
    CHECK(costs.n_samples(5) == 0 && costs.n_samples(6) > 2);
    CHECK(costs.n_rows_measured() == 8);
}

static void first_samples_are_believed_with_care() {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0);
    costs.learn(4, 500.0);  // building graphs
    CHECK(costs.ms(4) < 20.0);
    costs.learn(4, 13.0);
    CHECK_NEAR(costs.ms(4), 13.0, 0.5);
    CHECK(costs.first_use_ms() > 100.0 && costs.is_tried(4) && !costs.is_tried(8));
    costs.learn(4, 90.0);  // a stall right after it: two of three samples were bad
    for (int i = 0; i < 12; ++i) costs.learn(4, 13.0);
    CHECK_NEAR(costs.ms(4), 13.0, 2.0);
    costs.learn(8, 40.0);
    costs.learn(8, 41.0);
    CHECK(costs.ms(8) > 30.0);  // a size that is expensive twice is expensive
}

static void one_stall_hardly_moves_a_known_size() {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0, 40);
    costs.learn(1, 1000.0);
    CHECK(costs.ms(1) < 10.1);
    for (int i = 0; i < 300; ++i) costs.learn(1, 13.0);  // but a lasting change is followed
    CHECK_NEAR(costs.ms(1), 13.0, 0.2);
}

static void noise_averages_out() {
    Random random(31);
    StepCosts costs(0.06);
    for (int i = 0; i < 2000; ++i) costs.learn(3, 10.0 * std::exp(0.2 * (random.real() + random.real() - 1.0)));
    CHECK_NEAR(costs.ms(3), 10.0, 0.3);
}

// Which of the two is slower, machine or size, the rounds of the other sizes decide.
static void a_size_that_became_dear_is_told_from_a_slow_machine() {
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
    CHECK(machine.slowdown() > 1.1 && !machine.take_changed());
}

// Between and beyond the measured sizes a guess keeps their distance to the prior curve.
static void untried_sizes_follow_the_curve() {
    StepCosts flat(0.06), steep(0.06);
    for (int n : {1, 4}) {
        learn(flat, n, 10.0 + 0.1 * n);
        learn(steep, n, 10.0 + 2.5 * n);
    }
    CHECK(flat.ms(2) > flat.ms(1) && flat.ms(16) > flat.ms(4) && flat.ms(16) < 15.0);
    CHECK(steep.ms(2) > 12.5 && steep.ms(2) < steep.ms(3) && steep.ms(3) < 20.0);
    CHECK(steep.ms(16) > 20.0 && steep.ms(16) < 45.0);
}

// A machine that is suddenly half as fast is that for all sizes, also where the one that runs was hardly known.
static void a_slow_machine_sets_no_price() {
    StepCosts costs(0.06, true);
    learn(costs, 1, 10.0, 40);
    learn(costs, 4, 14.0, 4);
    learn(costs, 4, 28.0, 6);
    CHECK(costs.take_changed());
    CHECK_NEAR(costs.slowdown() * costs.ms(4), 28.0, 1.0);
    CHECK_NEAR(costs.slowdown() * costs.ms(1), 20.0, 1.0);
}

// A long stretch of one size, with the long tail that times have, and a machine that was slow at first.
static void sizes_that_wait_keep_their_ratio() {
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

// Times that no machine has leave nothing behind that a few true ones do not put right.
static void nonsense_is_got_over() {
    Random random(34);
    StepCosts costs(0.06, true);
    for (int i = 0; i < 3000; ++i) {
        costs.learn(random.integer(1, 8), std::pow(10.0, random.integer(-9, 9)));
        CHECK(std::isfinite(costs.ms(4)) && costs.ms(4) > 0.0 && std::isfinite(costs.slowdown()));
    }
    for (int i = 0; i < 400; ++i) costs.learn(1 + i % 4, 10.0 + i % 4);
    for (int n = 1; n <= 4; ++n) CHECK_NEAR(costs.slowdown() * costs.ms(n), 9.0 + n, 0.5);
}

// Prices from a time when the machine was busy, as a file had them: sizes beside them say what is possible.
static void what_cannot_be_true_is_not_believed() {
    StepCosts costs(0.06, true);
    const std::pair<int, double> saved[] = {{1, 3.7},  {2, 50.8},  {3, 5.1},  {4, 5.06},
                                            {6, 5.09}, {7, 114.5}, {8, 80.2}, {16, 208.5}};
    for (const auto & [n, ms] : saved) costs.set_saved(StepCosts::bucket_of(n), ms);
    CHECK_NEAR(costs.ms(2), 2 * 5.06, 1e-6);   // no more than four
    CHECK_NEAR(costs.ms(7), 4 * 5.06, 1e-6);   // two batches of four
    CHECK_NEAR(costs.ms(16), 6 * 5.09, 1e-6);  // three of six
    for (int n : {1, 3, 4, 6}) CHECK_NEAR(costs.ms(n), costs.saved_ms(StepCosts::bucket_of(n)), 1e-6);
    CHECK_NEAR(costs.ms(4), 5.06, 1e-6);
    for (int i = 0; i < 4; ++i) costs.learn(2, 4.0);
    CHECK_NEAR(costs.slowdown() * costs.ms(2), 4.0, 0.3);
}

int main() {
    buckets_cover_every_row_count();
    keeps_steps_and_dips();
    first_samples_are_believed_with_care();
    one_stall_hardly_moves_a_known_size();
    noise_averages_out();
    a_size_that_became_dear_is_told_from_a_slow_machine();
    untried_sizes_follow_the_curve();
    a_slow_machine_sets_no_price();
    sizes_that_wait_keep_their_ratio();
    nonsense_is_got_over();
    what_cannot_be_true_is_not_believed();
    return result();
}
