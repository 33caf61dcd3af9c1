// SPDX-License-Identifier: MIT
// Tests single calls of the planner. Plans stay legal after any history, fixed strategies are followed, and equal
// inputs give equal plans in little time.
#include "algo/planner.h"

#include <limits>

#include "../check.h"
#include "algo/tree.h"
#include "base/error.h"
#include "play.h"
#include "random.h"
#include "tree_grower.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

std::vector<std::vector<Candidate>> propose(Random & random, const SequencePlan & plan, bool is_hostile) {
    const float values[] = {std::nanf(""), (float)-inf, 0.0f, -1e30f, 3.0f, -0.5f};
    std::vector<std::vector<Candidate>> out;
    for (size_t i = 0; i < plan.frontier().size(); ++i) {
        out.emplace_back();
        float logp = -2.0f * (float)(random.real() * random.real());
        for (int j = 0; j < plan.decision().k; ++j) {
            out.back().push_back({random.integer(0, 5) * 10 + j, is_hostile ? values[random.integer(0, 5)] : logp});
            logp -= 1.0f + 2.0f * (float)random.real();
        }
    }
    return out;
}

double some_time(Random & random, bool is_hostile) {
    const double values[] = {0.0, -1.0, std::nan(""), inf, 1e300, 1e-300, 5.0};
    return is_hostile ? values[random.integer(0, 6)] : 10.0 * (0.9 + 0.2 * random.real());
}

// Checks that a round's tree stays within the limits, whatever rounds came before.
void check_legal(const SequencePlan & plan, const PlanLimits & limits, int n_left) {
    const DraftTree & tree = plan.tree();
    CHECK(tree.size() >= 1 && tree.n_draft() <= std::max(limits.n_nodes, 0));
    CHECK((int)tree.leaves().size() <= std::max(limits.n_leaves, 1));
    CHECK(tree.n_draft() == (int)plan.decision().nodes.size());
    for (int i = 1; i < tree.size(); ++i) {
        CHECK(tree.parent[i] >= 0 && tree.parent[i] < i);
        CHECK(tree.depth[i] == tree.depth[tree.parent[i]] + 1 &&
              (tree.depth[i] <= tree.depth[i - 1] || tree.parent[i] == i - 1));
        CHECK(tree.depth[i] < n_left);  // a draft beyond the last token of the answer would be useless
        CHECK(tree.logp[i] <= tree.logp[tree.parent[i]]);
    }
    CHECK(plan.decision().n_leaves == (tree.n_draft() > 0 ? (int)tree.leaves().size() : 0));
    CHECK(plan.frontier().empty());
}

Tokens emit(Random & random, const DraftTree & tree, int n_left) {
    return match(tree, [&](int) { return Choice{random.integer(0, 5) * 10, --n_left == 0}; }).tokens;
}

}  // namespace

// A planner and its conversations.
struct Scene {
    explicit Scene(int seed, int n_plans = 1, const PlannerOptions & options = {})
        : planner(options), random(seed), plans(n_plans) {
        for (SequencePlan & p : plans) planner.begin_request(p, RequestKind::greedy, false);
    }

    // Runs a round of the first n conversations, all with the same request.
    double draft(const RoundRequest & request, int n = 1) {
        std::vector<Turn> turns;
        for (int i = 0; i < n; ++i) turns.push_back({&plans[i], request});
        const double ms = test::draft(
            planner, turns, [&](const Turn & t) { return propose(random, *t.plan, is_hostile); },
            [&](bool, int) { return is_hostile ? some_time(random, true) : 0.6; });
        for (int i = 0; i < n; ++i) check_legal(plans[i], request.limits, request.n_left);
        return ms;
    }
    void round(const RoundRequest & request, double verify_ms, double round_ms, int n = 1) {
        draft(request, n);
        for (int i = 0; i < n; ++i) planner.learn(plans[i], emit(random, plans[i].tree(), request.n_left));
        planner.end_round(verify_ms, round_ms);
    }

    Planner planner;
    Random random;
    bool is_hostile = false;
    std::vector<SequencePlan> plans;
    SequencePlan & plan = plans[0];
};

// If the target runs rows again, these rows are charged to the ledger like all other rows. The round does not count as
// target-only.
TEST(a_round_that_runs_rows_again_drafts_nothing_and_is_charged) {
    const auto measured = [](bool is_again) {
        Scene s(0);
        s.plan.use(Strategy());
        for (int round = 0; round < 12; ++round) {
            RoundRequest request{0, 100, 1, {}};
            request.n_replay = is_again && round > 5 ? 3 : 0;
            const double ms = request.n_replay > 0 ? 16.0 : 10.0;
            s.round(request, ms, ms);
            CHECK(s.plan.tree().n_draft() == 0);
        }
        CHECK(s.plan.decision().reason == (is_again ? Decision::Reason::replay : Decision::Reason::off));
        return std::pair{s.planner.charged(), s.planner.costs().target_only(1)};
    };
    const auto [plain, plain_ms] = measured(false);
    const auto [again, same_ms] = measured(true);
    CHECK_NEAR(plain, 1.0, 0.01);
    CHECK_NEAR(again, 1.6, 0.1);
    CHECK_NEAR(same_ms, plain_ms, 0.1);  // the round does not affect the target-only reference time
}

TEST(plans_are_legal_whatever_happens) {
    for (int seed = 0; seed < 80; ++seed) {
        Scene s(100 + seed);
        s.is_hostile = seed >= 40;
        if (seed % 4 == 3) s.plan.use(Strategy::make("chain", 1, 8, 8));
        s.planner.begin_request(s.plan, (RequestKind)s.random.integer(0, n_request_kinds - 1), false);
        for (int round = 0; round < 300; ++round) {
            const PlanLimits limits{s.random.integer(0, 64), s.random.integer(1, 16), s.random.integer(0, 128)};
            const int n_left = round % 3 ? s.random.integer(1, 3) : 100;
            TextDraft text;
            for (int i = s.random.integer(0, 20); i > 0; --i) text.tokens.push_back(s.random.integer(0, 5) * 10);
            text.n_match = s.random.integer(0, 40);
            const double ms = some_time(s.random, s.is_hostile), more_ms = some_time(s.random, s.is_hostile);
            s.round({0, n_left, s.random.integer(0, 300), limits, seed % 2 ? &text : nullptr}, ms, ms + more_ms);
            size_t n_rows = 0;
            for (const auto & level : s.plan.decision().steps) n_rows += level.size();
            CHECK((int)n_rows <= limits.n_draft_rows + 1);  // the root is not a draft row
            CHECK(std::isfinite(s.planner.ledger().balance()) && std::isfinite(s.planner.costs().target_only()));
        }
    }
}

TEST(several_conversations_share_legally) {
    for (int seed = 0; seed < 20; ++seed) {
        Scene s(200 + seed, 6);
        s.plans[4].use(Strategy::make("tree", 3, 3, 7));
        s.plans[5].use(Strategy::make("off", 1, 1, 1));
        for (int round = 0; round < 200; ++round) {
            const int n = s.random.integer(1, 6);
            s.round({0, 50, 1, {32, 8, 128}}, 10.0 + n, 11.0 + n, n);
        }
    }
}

// A round that an error has interrupted leaves no trace.
TEST(a_round_may_be_begun_anew) {
    Scene s(300);
    for (int round = 0; round < 200; ++round) {
        if (round % 7 == 0) {
            s.planner.begin_round(1);
            decide(s.planner, {&s.plan, {0, 50, 1, {}}});
        } else if (round % 11 == 0) {
            s.draft({0, 50, 1, {}});
        } else {
            s.round({0, 50, 1, {}}, 10.0, 11.0);
        }
    }
}

static void append_depth_first(const DraftTree & from, int node, int to, DraftTree & out) {
    for (int i = node + 1; i < from.size(); ++i) {
        if (from.parent[i] == node) append_depth_first(from, i, out.add(from.token[i], to, 0.0f), out);
    }
}

// Returns the tree in depth-first order, which is the order in which the planner verifies trees.
static DraftTree depth_first(const DraftTree & tree) {
    DraftTree out(tree.token[0]);
    append_depth_first(tree, 0, 0, out);
    return out;
}

// A fixed strategy gives exactly the tree that EAGLE-2's growth and re-ranking give.
TEST(fixed_strategies_equal_eagle_2s) {
    for (const Strategy & strategy :
         {Strategy::make("chain", 1, 4, 4), Strategy::make("tree", 4, 5, 15), Strategy::make("tree", 3, 2, 30)}) {
        for (int n_leaves : {1, 4, 64}) {
            Scene s(400);
            s.plan.use(strategy);
            TreeGrower grower(7, strategy.k);
            const auto grow = [&](const Turn &) {
                CHECK(s.plan.frontier() == grower.frontier());
                const auto children = propose(s.random, s.plan, false);
                grower.grow(children);
                return children;
            };
            draft(s.planner, {{&s.plan, {7, 100, 1, {64, n_leaves, 128}}}}, grow, [](bool, int) { return 0.5; });
            const DraftTree expected = depth_first(best_subtree(grower.pool(), strategy.nodes, n_leaves));
            CHECK(s.plan.tree().token == expected.token && s.plan.tree().parent == expected.parent);
            CHECK(s.plan.decision().reason == Decision::Reason::fixed);
        }
    }
}

TEST(nothing_is_drafted_after_an_end) {
    PlannerOptions options;
    options.end_tokens = {10, 20, 30};
    for (int seed = 0; seed < 10; ++seed) {
        Scene s(500 + seed, 1, options);
        for (int round = 0; round < 100; ++round) {
            s.round({0, 100, 1, {64, 64, 128}}, 10.0, 11.0);
            for (int i = 1; i < s.plan.pool().size(); ++i) {
                const Token above = s.plan.pool().token[s.plan.pool().parent[i]];
                CHECK(above != 10 && above != 20 && above != 30);
            }
        }
    }
}

// Runs a target-only round of 10 ms in which the drafter may commit its pending rows. Returns the time that is charged
// to the ledger.
static double round_with_commit(Scene & s, int n_left, double commit_ms) {
    s.planner.begin_round(1);
    decide(s.planner, {&s.plan, {0, n_left, 128, {}}});
    if (commit_ms > 0.0) s.planner.catch_up(s.plan, 128, commit_ms);
    s.planner.choose({&s.plan});
    s.planner.learn(s.plan, {1});
    s.planner.end_round(10.0, 10.0 + commit_ms);
    return s.planner.charged();
}

TEST(catching_up_is_charged) {
    Scene s(0);
    const auto round = [&](double ms) { return round_with_commit(s, 1, ms); };  // a round without drafts
    for (int i = 0; i < 2; ++i) CHECK(round(0.0) == 0.0);                       // the target-only time is not known yet
    for (int i = 0; i < 9; ++i) CHECK(round(0.0) == 1.0);
    const double plain_ms = s.planner.costs().target_only(), before = s.planner.ledger().balance();
    const double charged = round(2.0);
    CHECK_NEAR(charged, 1.2, 1e-6);
    CHECK_NEAR(before - s.planner.ledger().balance(), 0.2 - 0.012, 1e-6);
    CHECK_NEAR(s.planner.costs().target_only(), plain_ms, 1e-6);  // the commit does not count as target-only time
}

// The drafter may catch up while the ledger saves up for a trial. The time for catching up does not reduce what
// target-only rounds add to the ledger.
TEST(catching_up_is_free_while_over_budget) {
    PlannerOptions options;
    options.ledger.start = 0.0;
    Scene s(0, 1, options);
    for (int i = 0; i < 6; ++i) round_with_commit(s, 100, 0.0);
    const double before = s.planner.ledger().balance();
    for (double ms : {0.0, 20.0}) {
        round_with_commit(s, 100, ms);
        CHECK(s.plan.decision().reason == Decision::Reason::over_budget);
    }
    CHECK_NEAR(s.planner.ledger().balance() - before, 2 * 0.012, 1e-6);
}

// A round in which a fixed strategy drafts never counts as target-only. This is true however long the other
// conversations wait for a target-only round.
TEST(a_fixed_strategy_does_not_keep_others_from_drafting) {
    Scene s(310, 2);
    s.plans[1].use(Strategy::make("chain", 1, 3, 3));
    for (int n : {1, 2, 3, 4, 5, 6, 8}) {
        for (int i = 0; i < 4; ++i) s.planner.costs().learn_verify(n, 10.0 + 0.1 * n);
    }
    int n_calibrating = 0;
    for (int round = 0; round < 300; ++round) {
        s.round({0, 500, 1, {16, 1, 128}}, 10.5, 11.0, 2);
        n_calibrating += s.plan.decision().reason == Decision::Reason::calibrating;
    }
    CHECK_MSG(n_calibrating < 75, strf("%d of 300 rounds", n_calibrating));
}

// If the process is suspended during the first use of a batch size, the long duration must not stop drafting.
TEST(a_stall_at_the_first_use_of_a_size_does_not_end_drafting) {
    Scene s(320);
    int n_drafts = 0, n_over_budget = 0;
    for (int round = 0; round < 60; ++round) {
        s.draft({0, 500, 1, {16, 1, 128}});
        const bool drafts = s.plan.tree().n_draft() > 0, is_stalled = drafts && n_drafts++ == 0;
        s.planner.learn(s.plan, Tokens(1 + s.plan.tree().depth.back(), 0));
        s.planner.end_round(is_stalled ? 2000.0 : 10.5, is_stalled ? 2000.0 : 11.0);
        n_over_budget += s.plan.decision().reason == Decision::Reason::over_budget;
    }
    CHECK_MSG(n_drafts > 20 && n_over_budget < 20, strf("%d drafts, %d rounds over budget", n_drafts, n_over_budget));
}

// If the first drafts are too large, two rejected drafts end drafting for hundreds of tokens. The costs are those of
// SmolLM2 on a CPU.
TEST(the_first_balance_lasts_for_several_rejected_drafts) {
    Scene s(330);
    for (const auto & [n, ms] : {std::pair{1, 2.3}, {2, 2.8}, {4, 3.1}, {8, 4.0}, {16, 6.6}}) {
        for (int i = 0; i < 4; ++i) s.planner.costs().learn_verify(n, ms);
    }
    s.planner.begin_request(s.plan, RequestKind::coupled_warm, false);
    const std::vector<Candidate> siblings = {{0, -0.01f, -1.0f}, {1, -6.0f, -1.0f}, {2, -7.0f, -1.0f}};
    const auto children = [&](const Turn & t) { return std::vector(t.plan->frontier().size(), siblings); };
    int n_drafts = 0;
    for (int round = 0; round < 12; ++round) {
        const double draft_ms =
            draft(s.planner, {{&s.plan, {0, 500, 1, {15, 8, 8}}}}, children, [](bool, int) { return 0.2; });
        n_drafts += s.plan.tree().n_draft() > 0;
        s.planner.learn(s.plan, {99});
        const double verify_ms = s.planner.costs().verify(s.plan.tree().size());
        s.planner.end_round(verify_ms, verify_ms + draft_ms);
    }
    CHECK_MSG(n_drafts >= 5, strf("%d drafts", n_drafts));
}

// When rejected rows are removed, some targets lose accepted rows. So each accepted row may have to run again.
TEST(rows_that_may_be_run_again_cost_twice) {
    const auto n_verified = [](bool replays) {
        Scene s(700);
        for (int n = 1; n <= 16; ++n) {
            for (int i = 0; i < 4; ++i) s.planner.costs().learn_verify(n, 10.0 + n);
        }
        PlanLimits limits{15, 1, 16};
        limits.replays = replays;
        for (int round = 0; round < 3; ++round) s.round({0, 100, 1, limits}, 11.0, 11.5);
        s.draft({0, 100, 1, limits});
        return s.plan.tree().n_draft();
    };
    const int once = n_verified(false), twice = n_verified(true);
    CHECK_MSG(twice < once, strf("%d nodes, and %d nodes if rows may run again", once, twice));
}

// A block has many rows, and a commit has few rows. If a commit's cost did not count the block's rows, two different
// commits would look alike: two conversations with one row each, and one conversation with two rows.
TEST(a_blocks_rows_count_in_the_cost_of_a_commit) {
    Scene s(900, 2);
    PlanLimits limits{7, 1, 16};
    limits.n_block_rows = 7;
    for (int round = 0; round < 200; ++round) {
        const int n = 1 + round / 4 % 2, n_pending = n == 1 ? 2 : 1;
        std::vector<Turn> turns;
        for (int i = 0; i < n; ++i) turns.push_back({&s.plans[i], {0, 100, n_pending, limits}});
        const auto children = [](const Turn & t) {
            return std::vector<std::vector<Candidate>>(t.plan->frontier().size(), {{0, -0.1f}});
        };
        const double ms = draft(s.planner, turns, children, [&](bool is_first, int) { return is_first ? n : 0.01; });
        for (int i = 0; i < n; ++i) s.planner.learn(s.plans[i], Tokens(1 + s.plans[i].tree().n_draft(), 0));
        s.planner.end_round(10.0, 10.0 + ms);
    }
    CHECK_NEAR(s.planner.costs().commit(2 + 7), 1.0, 0.1);
    CHECK_NEAR(s.planner.costs().commit(2 * (1 + 7)), 2.0, 0.2);
}
