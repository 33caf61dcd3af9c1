// SPDX-License-Identifier: MIT
#include "algo/step_costs.h"

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
    CHECK(costs.n_samples(5) == 0.0 && costs.n_samples(6) > 2.0);
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

// What is added on top is never below zero, and that does not push the shapes up either.
static void nothing_is_added_where_there_is_nothing() {
    Random random(33);
    StepCosts costs(0.06, true);
    for (int i = 0; i < 2000; ++i) {
        const int n_rows = 1 + i / 3 % 4;
        costs.set_kv(64 + i % 900);
        costs.learn(n_rows, (10.0 + n_rows) * (0.97 + 0.06 * random.real()), i % 3 == 0);
    }
    CHECK(costs.change_ms() < 0.1 && costs.growth().per_row < 2e-4 && costs.growth().per_step < 1e-3);
    for (int n : {1, 2, 3, 4}) CHECK_NEAR(costs.slowdown() * costs.ms(n), 10.0 + n, 0.4);
}

static void uncertain_sizes_are_priced_at_the_lower_end() {
    StepCosts few(0.06), many(0.06);
    learn(few, 1, 10.0, 40);
    learn(many, 1, 10.0, 40);
    learn(few, 6, 14.0, 2);
    learn(many, 6, 14.0, 40);
    CHECK(few.ms(6) < many.ms(6) && many.ms(6) < 14.05 && many.ms(6) > 13.7);
}

// Beyond the measured sizes a steep curve goes on being steep, in part.
static void untried_sizes_go_on_rising() {
    StepCosts flat(0.06), steep(0.06);
    for (int n = 1; n <= 4; ++n) {
        learn(flat, n, 10.0 + 0.1 * n);
        learn(steep, n, 10.0 + 2.5 * n);
    }
    CHECK(flat.ms(16) < 15.0);
    CHECK(steep.ms(16) / steep.ms(4) > 1.1 * flat.ms(16) / flat.ms(4) && steep.ms(16) < 45.0);
}

static void forgets_what_nobody_confirms() {
    StepCosts costs(0.06);
    learn(costs, 1, 10.0);
    learn(costs, 8, 15.0, 30);
    learn(costs, 4, 80.0, 2);  // two stalls
    learn(costs, 1, 10.0, 2500);
    CHECK(costs.n_samples(4) > 0.0 && costs.ms(4) > 40.0);
    learn(costs, 1, 10.0, 2500);
    CHECK(costs.n_samples(4) == 0.0 && costs.n_samples(8) > 20.0);
    costs.learn(4, 13.0);
    costs.learn(4, 13.0);
    CHECK_NEAR(costs.ms(4), 13.0, 1.5);  // believed again at once
    learn(costs, 1, 10.0, 50000);
    CHECK(costs.n_samples(8) == 0.0 && costs.n_samples(1) > 0.0);  // the plain reference stays
}

static void assumed_entries_yield_to_a_sample() {
    StepCosts known(0.06), other(0.06);
    learn(known, 1, 10.0, 40);
    learn(known, 4, 12.0, 40);
    other.assume(known);
    CHECK_NEAR(other.ms(4), 12.0, 0.1);
    for (int i = 0; i < 3; ++i) other.learn(4, 9.0);
    CHECK_NEAR(other.ms(4), 9.0, 0.5);
}

int main() {
    buckets_cover_every_row_count();
    keeps_steps_and_dips();
    first_samples_are_believed_with_care();
    one_stall_hardly_moves_a_known_size();
    noise_averages_out();
    a_size_that_became_dear_is_told_from_a_slow_machine();
    nothing_is_added_where_there_is_nothing();
    uncertain_sizes_are_priced_at_the_lower_end();
    untried_sizes_go_on_rising();
    forgets_what_nobody_confirms();
    assumed_entries_yield_to_a_sample();
    return result();
}
