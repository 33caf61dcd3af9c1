// SPDX-License-Identifier: MIT
// The sizes of batches on a device that keeps a graph while they stay, and what the planner makes of them.
#include <memory>

#include "../check.h"
#include "scenarios.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

// Builds and captures as an H200 needs them for a model of 8B.
TEST(the_first_batches_of_a_size_tell_what_a_change_costs) {
    CostTable table;
    for (int k = 0; k < 8; ++k) {
        for (int n : {1, 4}) {
            const double usual = n == 1 ? 3.0 : 4.0;
            table.learn_alike(1, n, usual + 1.2);
            table.learn_alike(2, n, usual + (k == 0 ? 90.0 : 4.8));  // the first one loads kernels
            for (int i = 3; i < 6; ++i) table.learn_alike(i, n, usual);
        }
    }
    CHECK_NEAR(table.change_ms(), 6.0, 0.3);
    CHECK_NEAR(table.verify(1), 3.0, 0.05);
    CHECK_NEAR(table.verify(4), 4.0, 0.05);
    CostTable loaded;
    CHECK(loaded.set_state(table.state()) && !loaded.set_state({{"change", {-1.0}}}));
    CHECK_NEAR(loaded.change_ms(), table.change_ms(), 0.01);
}

struct Run {
    double speed = 0.0, rebuilt = 0.0;
    bool has_trees = false;
};

// A device on which another size costs `change` ms, `capture` of them in its second batch, and each tree is another
// size, with the prices that are measured when an engine opens. The text is answers of `request` tokens.
static Run run(const Machine & on, int text_number, bool pads_rows, double change = 1.0, double capture = 0.0,
               int request = 0) {
    Machine m = on;
    m.is_device = true;
    CostTable known;
    for (int n : {1, 2, 3, 4, 5, 8, 16}) {
        for (int i = 0; i < 3; ++i) known.learn_verify(n, m.verify_ms(n));
    }
    for (int i = 1; i <= 3; ++i) known.learn_alike(i, 1, m.plain_ms() + (i < 3 ? change / 2.0 : 0.0));
    RunOptions options;
    options.costs = known.state();
    options.planner.pads_rows = pads_rows;
    Disturbance disturbance;
    disturbance.rebuild = (change - capture) / m.plain_ms();
    disturbance.capture = capture / m.plain_ms();
    Run out;
    constexpr int n_seeds = 3;
    for (int seed = 1; seed <= n_seeds; ++seed) {
        Text words = text(text_number);
        words.request = request;
        const auto world = std::make_shared<World>(words, 4096, hash(seed, text_number));
        const Scene scene(m, world, disturbance);
        const Result r = scene.run_planner(options);
        out.speed += scene.plain_ms().back() / r.ms / n_seeds;
        out.rebuilt += (double)r.n_rebuilt / (double)r.marks.size() / n_seeds;
        out.has_trees = out.has_trees || r.has_trees;
    }
    return out;
}

// RTX 3090: rows cost little beside a change
TEST(the_planner_keeps_a_size_where_that_is_cheap) {
    for (int text_number : {1, 2}) {
        const Run before = run(machine(1), text_number, false), after = run(machine(1), text_number, true);
        std::printf("RTX 3090, %s: %.3f of plain, %.3f of the rounds built; without padding %.3f, %.3f\n",
                    text(text_number).name.c_str(), after.speed, after.rebuilt, before.speed, before.rebuilt);
        CHECK(after.rebuilt < 0.05);
        CHECK(after.speed > before.speed);
    }
}

// An H200 and a model of 8B, where a change costs two plain rounds, or, as for models of 1 GB, six. Before the price of
// a change was measured, and before a prompt was taken for one, this drafted nothing there.
TEST(on_a_fast_card_an_answer_keeps_its_size) {
    Machine m{"H200 8B Q4_0",
              {{1, 2.98},
               {2, 3.25},
               {3, 3.78},
               {4, 4.23},
               {5, 4.83},
               {6, 5.19},
               {7, 5.6},
               {8, 6.14},
               {9, 7.12},
               {16, 7.57},
               {32, 9.33}}};
    m.host = 0.02;
    for (double change : {6.0, 18.0}) {
        for (int request : {128, 0}) {
            const double capture = 0.75 * change;
            const Run code = run(m, 1, true, change, capture, request),
                      prose = run(m, 2, true, change, capture, request),
                      hostile = run(m, 4, true, change, capture, request);
            std::printf("H200, %.0f ms a change, answers of %d: %.3f, %.3f, %.3f of plain\n", change, request,
                        code.speed, prose.speed, hostile.speed);
            CHECK(code.speed > 1.7);
            CHECK(prose.speed > 1.3);
            CHECK(hostile.speed > 0.97);
        }
    }
}

TEST(trees_where_the_prices_say_so) {
    CHECK(!run(machine(1), 2, true).has_trees);
    CHECK(run(machine(7), 2, true).has_trees);  // sixteen rows cost twelve hundredths more than one
}
