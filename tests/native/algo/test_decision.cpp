// SPDX-License-Identifier: MIT
#include "algo/decision.h"

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static Decision tree_decision() {
    Decision d;
    d.mode = Decision::Mode::draft;
    d.reason = Decision::Reason::pays;
    d.k = 4;
    d.levels = {{0}, {1, 2}, {5, 6}};
    d.nodes = {1, 2, 5};
    d.depth = 2;
    d.n_leaves = 2;
    d.n_tokens = 2.913;
    d.cost = 1.3125;
    d.best_speed = 2.2;
    return d;
}

static bool same(const Decision & a, const Decision & b) {
    return a.mode == b.mode && a.reason == b.reason && a.k == b.k && a.levels == b.levels && a.nodes == b.nodes &&
           a.depth == b.depth && a.n_leaves == b.n_leaves && std::fabs(a.n_tokens - b.n_tokens) < 1e-3 &&
           std::fabs(a.cost - b.cost) < 1e-3 && std::fabs(a.best_speed - b.best_speed) < 1e-3;
}

static void prints_and_reads_back() {
    CHECK(tree_decision().to_line() ==
          "draft k=4 levels=0/1,2/5,6 nodes=1,2,5 depth=2 leaves=2 reason=pays tokens=2.913 cost=1.312 speed=2.2");
    CHECK(same(Decision::from_line(tree_decision().to_line()), tree_decision()));
    CHECK(Decision().to_line() == "plain reason=off" && same(Decision::from_line("plain reason=off"), Decision()));
    Random random(71);
    for (int round = 0; round < 300; ++round) {
        Decision d;
        d.mode = (Decision::Mode)random.integer(0, 2);
        d.reason = (Decision::Reason)random.integer(0, 9);
        if (d.mode != Decision::Mode::plain) {
            d.k = random.integer(1, 16);
            for (int i = random.integer(1, 10); i > 0; --i) d.levels.push_back({random.integer(0, 300)});
            d.n_tokens = 1.0 + 5.0 * random.real();
            d.cost = 3.0 * random.real();
        }
        if (d.mode == Decision::Mode::draft) {
            for (int i = random.integer(1, 64); i > 0; --i) d.nodes.push_back(random.integer(1, 400));
            d.depth = random.integer(1, 10);
            d.n_leaves = random.integer(1, 16);
        }
        d.best_speed = 2.0 * random.real();
        CHECK(same(Decision::from_line(d.to_line()), d));
        CHECK(d.to_line().find('\n') == std::string::npos);
    }
}

static void refuses_other_lines() {
    for (const char * line :
         {"", "hello", "draft k", "draft k=x", "draft k=-1", "draft k=1.5", "draft nodes=1,,2",
          "draft nodes=99999999999", "plain reason=because", "draft tokens=nan", "draft levels=0/x"}) {
        CHECK_THROWS(Decision::from_line(line), "plan log");
    }
    Random random(72);
    const std::string text = tree_decision().to_line();
    for (int round = 0; round < 3000; ++round) {
        std::string mutant = text;
        for (int i = random.integer(1, 5); i > 0; --i)
            mutant[random.integer(0, (int)text.size() - 1)] = (char)random.integer(1, 255);
        try {
            Decision::from_line(mutant);
        } catch (const Error & e) {
            CHECK(e.kind == ErrorKind::value);
        }
    }
}

static void explains_itself() {
    Decision d = tree_decision();
    CHECK(d.explain() == "tree 3 nodes, depth 2: expected 2.9 tokens in the time of 1.31 plain steps");
    d.nodes = {1, 2, 3, 4};
    d.n_leaves = 1;
    CHECK(d.explain() == "chain 4: expected 2.9 tokens in the time of 1.31 plain steps");
    Decision off;
    CHECK(off.explain() == "off");
    off.reason = Decision::Reason::parked;
    off.best_speed = 0.93;
    CHECK(off.explain() == "off: the best draft would reach 0.93 of plain speed");
    off.reason = Decision::Reason::saving;
    CHECK(off.explain() == "off: waiting before the next try, the best draft would reach 0.93 of plain speed");
    off.reason = Decision::Reason::measuring;
    CHECK(off.explain() == "off: measuring a plain step");
    off.reason = Decision::Reason::room;
    CHECK(off.explain() == "off: no room for a draft");
}

static void sums_up_a_generation() {
    PlanSummary none, on, off;
    CHECK(none.explain() == "off");
    Decision parked, probe, measuring;
    parked.reason = Decision::Reason::parked;
    parked.best_speed = 0.9;
    probe.mode = Decision::Mode::probe;
    probe.reason = Decision::Reason::probe;
    probe.best_speed = 0.9;
    measuring.reason = Decision::Reason::measuring;
    for (int i = 0; i < 8; ++i) on.add(tree_decision(), 3, 1.5);
    on.add(measuring, 1, 0.0);
    on.add(measuring, 1, 1.0);
    CHECK(on.explain() ==
          "tree 3 nodes, depth 2: expected 2.9 tokens in the time of 1.31 plain steps; drafted in 8 of 10 rounds");
    CHECK_NEAR(on.speedup(), (8 * 3 + 1) / (8 * 1.5 + 1), 1e-9);  // a round of unknown length does not count
    CHECK_NEAR(on.n_nodes(), 3.0, 1e-9);
    CHECK_NEAR(on.depth(), 2.0, 1e-9);
    CHECK_NEAR(on.n_tokens_expected(), 2.913, 1e-9);
    CHECK_NEAR(on.cost_expected(), 1.3125, 1e-9);
    for (int i = 0; i < 7; ++i) off.add(parked, 1, 0.0);
    off.add(probe, 1, 0.0);
    off.add(tree_decision(), 3, 0.0);
    off.add(measuring, 1, 0.0);
    CHECK(off.explain() ==
          "off: the best draft would reach 0.90 of plain speed; drafted in 1 of 10 rounds, and in 1 only compared a "
          "draft "
          "with the text");
    CHECK(off.speedup() == 0.0 && none.n_nodes() == 0.0);
    CHECK(off.n_rounds() == 10 && off.n_drafted() == 1 && off.n_probes() == 1);
}

int main() {
    prints_and_reads_back();
    refuses_other_lines();
    explains_itself();
    sums_up_a_generation();
    return result();
}
