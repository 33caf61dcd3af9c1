// SPDX-License-Identifier: MIT
#include "algo/planner.h"

#include "../check.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static Decision tree_decision() {
    Decision d;
    d.mode = Decision::Mode::draft;
    d.reason = Decision::Reason::pays;
    d.k = 4;
    d.steps = {{0}, {1, 2}, {5, 6}};
    d.nodes = {1, 2, 5};
    d.depth = 2;
    d.n_leaves = 2;
    d.n_tokens = 2.913;
    d.cost = 1.3125;
    d.best_speed = 2.2;
    return d;
}

TEST(prints_one_line) {
    CHECK(tree_decision().to_line() ==
          "draft k=4 levels=0/1,2/5,6 nodes=1,2,5 depth=2 leaves=2 reason=pays tokens=2.913 cost=1.312 speed=2.2");
    Decision again;
    again.reason = Decision::Reason::replay;  // `replay` is the last name in the list of reasons
    CHECK(again.to_line() == "plain reason=replay");
}

TEST(sums_up_a_generation) {
    PlanSummary none, on, off;
    CHECK(none.explain() == "off");
    Decision over_budget, probe, calibrating;
    over_budget.reason = Decision::Reason::over_budget;
    over_budget.best_speed = 0.9;
    probe.mode = Decision::Mode::probe;
    probe.reason = Decision::Reason::all_rejected;
    probe.best_speed = 0.9;
    calibrating.reason = Decision::Reason::calibrating;
    for (int i = 0; i < 8; ++i) on.add(tree_decision(), 3, 1.5);
    on.add(calibrating, 1, 0.0);
    on.add(calibrating, 1, 1.0);
    CHECK(
        on.explain() ==
        "tree 3 nodes, depth 2: expected 2.9 tokens in the time of 1.31 target-only steps; drafted in 8 of 10 rounds");
    CHECK_NEAR(on.speedup(), (8 * 3 + 1) / (8 * 1.5 + 1), 1e-9);  // a round of unknown duration does not count
    for (int i = 0; i < 7; ++i) off.add(over_budget, 1, 0.0);
    off.add(probe, 1, 0.0);
    off.add(tree_decision(), 3, 0.0);
    off.add(calibrating, 1, 0.0);
    CHECK(off.explain() ==
          "off: the best draft would reach 0.90 times the target-only speed; drafted in 1 of 10 rounds, and in 1 more "
          "without verifying the draft");
    CHECK(off.speedup() == 0.0 && none.n_nodes() == 0.0);
    CHECK(off.n_rounds() == 10 && off.n_drafted() == 1 && off.n_probes() == 1);
}
