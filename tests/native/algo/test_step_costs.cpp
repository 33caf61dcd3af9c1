// SPDX-License-Identifier: MIT
#include "algo/step_costs.h"

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static void learn(StepCosts & costs, int n_rows, double ms, int n_times = 4) {
    for (int i = 0; i < n_times; ++i) costs.learn(n_rows, ms, 1);
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
    learn(costs, 4, 112.0);
    learn(costs, 6, 165.0);
    learn(costs, 8, 151.0);
    CHECK_NEAR(costs.ms(4), 112.0, 0.01);
    CHECK_NEAR(costs.ms(6), 165.0, 0.01);
    CHECK_NEAR(costs.ms(8), 151.0, 0.01);
    CHECK(costs.ms(5) > 112.0 && costs.ms(5) < 165.0);
    CHECK(costs.ms(16) > 151.0 && costs.ms(16) < 2.0 * 151.0);  // guessed on the cheap side, so that it is tried
    CHECK(costs.n_samples(5) == 0.0 && costs.n_samples(6) > 2.0);
    CHECK(costs.n_rows_measured() == 8);
}

static void first_samples_are_believed_with_care() {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0);
    costs.learn(4, 500.0, 1);  // building graphs
    CHECK(costs.ms(4) < 20.0);
    costs.learn(4, 13.0, 1);
    CHECK_NEAR(costs.ms(4), 13.0, 0.01);
    CHECK(costs.first_use_ms() > 100.0 && costs.is_tried(4) && !costs.is_tried(8));
    costs.learn(4, 90.0, 1);  // a stall right after it: two of three samples were bad
    for (int i = 0; i < 12; ++i) costs.learn(4, 13.0, 1);
    CHECK_NEAR(costs.ms(4), 13.0, 2.0);
    costs.learn(8, 40.0, 1);
    costs.learn(8, 41.0, 1);
    CHECK(costs.ms(8) > 39.0);  // a size that is dear twice is dear
}

static void one_stall_hardly_moves_a_known_size() {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0, 40);
    costs.learn(1, 1000.0, 1);
    CHECK(costs.ms(1) < 10.1);
    for (int i = 0; i < 300; ++i) costs.learn(1, 13.0, 1);  // but a lasting change is followed
    CHECK_NEAR(costs.ms(1), 13.0, 0.2);
}

static void noise_averages_out() {
    Random random(31);
    StepCosts costs(0.06);
    for (int i = 0; i < 2000; ++i) costs.learn(3, 10.0 * std::exp(0.2 * (random.real() + random.real() - 1.0)), 1);
    CHECK_NEAR(costs.ms(3), 10.0, 0.3);
}

// Samples that are not to be trusted make a size look dear only until more of them, or better ones, agree.
static void a_dear_size_is_doubted_between_known_ones() {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0);
    learn(costs, 4, 16.0);
    for (int i = 0; i < 3; ++i) costs.learn(2, 17.0, 1, 0.25);
    const double doubted = costs.ms(2);
    CHECK(doubted > 12.5 && doubted < 15.5);
    for (int i = 0; i < 5; ++i) costs.learn(2, 17.0, 1, 0.25);
    CHECK_NEAR(costs.ms(2), 17.0, 0.01);  // dear after all
    costs.learn(3, 11.5, 1, 0.25);
    costs.learn(3, 11.5, 1, 0.25);
    CHECK_NEAR(costs.ms(3), 11.5, 0.01);  // a cheap size needs no doubt: it will be run
}

// Beyond the measured sizes a steep curve goes on being steep, in part.
static void untried_sizes_go_on_rising() {
    StepCosts flat(0.06), steep(0.06);
    for (int n = 1; n <= 4; ++n) {
        learn(flat, n, 10.0 + 0.1 * n);
        learn(steep, n, 10.0 + 2.5 * n);
    }
    CHECK(flat.ms(16) < 15.0);
    CHECK(steep.ms(16) > 28.0 && steep.ms(16) < 45.0);
}

static void forgets_what_nobody_confirms() {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0);
    learn(costs, 8, 15.0, 30);
    learn(costs, 4, 80.0, 2);  // two stalls
    costs.forget(2500);
    CHECK(costs.ms(4) > 70.0);
    costs.forget(5000);
    CHECK(costs.ms(4) < 15.0 && costs.n_samples(8) > 20.0);
    costs.forget(1000000);
    CHECK(costs.n_samples(8) == 0.0 && costs.n_samples(1) > 0.0);  // the plain reference stays
}

static void assumed_entries_yield_to_a_sample() {
    StepCosts known(0.06), other(0.06);
    learn(known, 1, 10.0, 40);
    learn(known, 4, 12.0, 40);
    other.assume(known);
    CHECK_NEAR(other.ms(4), 12.0, 0.01);
    other.learn(4, 9.0, 1);
    other.learn(4, 9.0, 1);
    CHECK_NEAR(other.ms(4), 9.0, 0.01);
}

int main() {
    buckets_cover_every_row_count();
    keeps_steps_and_dips();
    first_samples_are_believed_with_care();
    one_stall_hardly_moves_a_known_size();
    noise_averages_out();
    a_dear_size_is_doubted_between_known_ones();
    untried_sizes_go_on_rising();
    forgets_what_nobody_confirms();
    assumed_entries_yield_to_a_sample();
    return result();
}
