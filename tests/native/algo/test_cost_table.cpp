// SPDX-License-Identifier: MIT
#include "algo/costs.h"

#include <limits>

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static const char * key = "cpu, model.gguf, 2 threads";

static CostTable example() {
    CostTable table;
    for (int round = 0; round < 6; ++round) {
        for (int n = 1; n <= 8; ++n) table.learn_verify(n, 10.0 + n);
        table.learn_commit(1, 0.8);
        table.learn_commit(3, 1.0);
        table.learn_level(1, 0.7);
        table.learn_level(4, 0.9);
        table.learn_host(false, 0.1);
        table.learn_host(true, 0.4);
    }
    return table;
}

static void knows_what_it_was_told() {
    CostTable table;
    CHECK(!table.is_known(1) && table.plain() == 0.0);
    table = example();
    CHECK(table.is_known(1) && table.is_known(8) && !table.is_known(16));
    CHECK_NEAR(table.plain(), 11.1, 0.05);
    CHECK_NEAR(table.verify(4), 14.0, 0.2);
    CHECK_NEAR(table.commit(1), 0.8, 0.02);
    CHECK_NEAR(table.level(4), 0.9, 0.02);
    CHECK(table.level(2) > 0.7 && table.level(2) < 0.9);
    CHECK_NEAR(table.host(), 0.3, 0.05);
    CHECK(table.n_rows_max() == 16);
    CHECK(table.verify_points(8).size() == 8 && table.verify_points(8)[3].n_rows == 4);
}

static void a_slow_machine_is_slow_at_everything() {
    CostTable table = example();
    table.take_changed();
    for (int i = 0; i < 8; ++i) table.learn_verify(4, 28.0);  // a co-tenant: twice the time
    CHECK(table.take_changed() && !table.take_changed());
    CHECK_NEAR(table.plain(), 22.2, 2.0);
    CHECK_NEAR(table.verify(8), 36.0, 4.0);
    CHECK_NEAR(table.level(1), 1.4, 0.2);
    for (int i = 0; i < 8; ++i) table.learn_verify(4, 14.0);
    CHECK_NEAR(table.plain(), 11.1, 1.2);
}

static void noise_and_stalls_are_no_change_of_the_machine() {
    Random random(41);
    CostTable table = example();
    table.take_changed();
    for (int i = 0; i < 2000; ++i) {
        const double noise = std::exp(0.25 * 1.7 * (random.real() + random.real() + random.real() - 1.5));
        table.learn_verify(1 + i % 4, (11.0 + i % 4) * noise * (random.real() < 0.02 ? 6.0 : 1.0));
    }
    CHECK_NEAR(table.plain(), 11.1, 1.0);
    CHECK_NEAR(table.verify(4) / table.verify(1), 14.0 / 11.0, 0.2);
}

static void nonsense_is_ignored() {
    CostTable table = example();
    const std::string before = table.to_text(key);
    const double inf = std::numeric_limits<double>::infinity();
    for (double ms : {-1.0, 0.0, std::nan(""), inf, -inf, 1e300}) {
        table.learn_verify(1, ms);
        table.learn_commit(1, ms);
        table.learn_level(1, ms);
    }
    table.learn_verify(0, 1.0);
    table.learn_verify(-3, 1.0);
    table.learn_host(true, std::nan(""));
    table.learn_host(true, inf);
    table.learn_verify(8, 18.0 * 50);  // the process was suspended
    CHECK(table.to_text(key) == before);
}

static void survives_a_round_trip() {
    const CostTable table = example();
    CostTable loaded;
    CHECK(loaded.from_text(table.to_text(key), key));
    CHECK(loaded.take_changed());  // compare with the machine as it is today
    for (int n = 1; n <= 8; ++n) CHECK_NEAR(loaded.verify(n), 10.0 + n, 0.3);
    CHECK_NEAR(loaded.level(4), table.level(4), 1e-6);
    CHECK_NEAR(loaded.host(), table.host(), 1e-6);
    // the machine is slower by half today: a few plain rounds say so for all sizes
    for (int i = 0; i < 5; ++i) loaded.learn_verify(1, 16.5);
    CHECK_NEAR(loaded.verify(8), 27.0, 1.5);
    // and one wrong entry yields to what is measured
    for (int i = 0; i < 4; ++i) loaded.learn_verify(4, 15.0);
    CHECK_NEAR(loaded.verify(4), 15.0, 1.0);
}

static std::string predicted_text() {
    return "eaglecpp cost-table 3\nkey " + std::string(key) +
           "\nverify 1 5 0\nverify 4 10 0\ncommit 1 1 0\nlevel 1 0.5 0\nhost 0.1 0.2\nend 5\n";
}

// What was worked out from the processor and the file is a price from the start, but no measurement.
static void a_prediction_counts_until_something_is_measured() {
    CostTable table;
    CHECK(table.from_text(predicted_text(), key));
    CHECK_NEAR(table.verify(4), 10.0, 1e-6);
    CHECK_NEAR(table.commit(1), 1.0, 1e-6);
    CHECK(!table.knows_plain() && !table.is_known(4));
    CHECK(table.to_text(key).find("verify") == std::string::npos &&
          table.to_text(key).find("level") == std::string::npos);
    // a machine twice as fast shows in the first single rows, and everything is half the price
    for (int i = 0; i < 5; ++i) table.learn_verify(1, 2.5);
    CHECK(table.knows_plain() && !table.is_known(4));
    CHECK_NEAR(table.verify(4), 5.0, 0.3);
    CHECK_NEAR(table.commit(1), 0.5, 0.03);
    // rows that cost something else than predicted do so after three runs
    for (int i = 0; i < 3; ++i) table.learn_verify(4, 8.0);
    CHECK(table.is_known(4));
    CHECK_NEAR(table.verify(4), 8.0, 0.5);
    CHECK(table.to_text(key).find("verify 4") != std::string::npos);
}

static void damaged_or_foreign_text_is_refused() {
    const CostTable table = example();
    const std::string text = table.to_text(key);
    CostTable other;
    CHECK(!other.from_text(text, "another machine") && !other.from_text("", key) && !other.from_text("x\ny\n", key));
    for (size_t n = 0; n + 1 < text.size(); ++n) CHECK(!other.from_text(text.substr(0, n), key));
    for (const char * line : {"verify 1 -5", "verify 1 0", "verify 0 5", "verify 1e9 5", "verify 1 nan", "verify 1",
                              "verify 1 5 1", "surprise 1 5", "host -1 0", "host 1 1 1", "verify 1 1e300"}) {
        std::string bad = "eaglecpp cost-table 3\nkey " + std::string(key) + "\n" + line + "\nend 1\n";
        CHECK(!other.from_text(bad, key));
    }
    CHECK(!other.is_known(1));
    Random random(42);
    for (int round = 0; round < 3000; ++round) {  // whatever it accepts, it stays usable
        std::string mutant = text;
        for (int i = random.integer(1, 4); i > 0; --i)
            mutant[random.integer(0, (int)text.size() - 1)] = (char)random.integer(9, 126);
        CostTable t;
        t.from_text(mutant, key);
        t.learn_verify(1, 10.0);
        CHECK(std::isfinite(t.plain()) && std::isfinite(t.verify(5)) && t.verify(5) >= 0.0);
    }
}

// A process that is stopped and continued, or shares its cores with many, sees rounds of any length.
static void what_a_disturbed_machine_teaches_can_be_read_again() {
    Random random(7);
    for (int i = 0; i < 400; ++i) {
        CostTable table;
        for (int round = random.integer(1, 60); round > 0; --round) {
            const double stall = std::pow(10.0, random.integer(-6, 6) * random.real());
            table.learn_verify(random.integer(1, 8), stall * (1.0 + random.real()));
            table.learn_commit(random.integer(1, 4), stall * random.real());
            table.learn_level(1, 0.1 * stall);
            table.learn_host(random.integer(0, 1) == 1, stall * random.real());
        }
        CostTable loaded;
        CHECK_MSG(loaded.from_text(table.to_text(key), key), table.to_text(key));
    }
}

int main() {
    what_a_disturbed_machine_teaches_can_be_read_again();
    knows_what_it_was_told();
    a_slow_machine_is_slow_at_everything();
    noise_and_stalls_are_no_change_of_the_machine();
    nonsense_is_ignored();
    survives_a_round_trip();
    a_prediction_counts_until_something_is_measured();
    damaged_or_foreign_text_is_refused();
    return result();
}
