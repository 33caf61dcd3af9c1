// SPDX-License-Identifier: MIT
// Tests exact batches. The rows of an exact batch have the same bits as rows that are computed one at a time. The
// planner plans only exact batches if the caller requests them or if they cost little.
#include "../check.h"
#include "algo/planner.h"
#include "algo/tree.h"
#include "base/error.h"
#include "play.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

RowCounts counts_of(const std::vector<int> & exact) {
    RowCounts out;
    for (int n = 2; n <= 65; ++n) out.set(n, std::find(exact.begin(), exact.end(), n) != exact.end());
    return out;
}

// A planner with a drafter that is mostly right. Its candidates are the target's token with probability 0.8, 0.1, ...
struct Scene {
    Planner planner;
    std::vector<SequencePlan> plans;
    Random random{7};
    PlanLimits limits{16, 8, 128, 8};
    double ms_per_row = 0.5;

    Scene(const RowCounts & counts, const std::vector<Strategy> & strategies, Exactness exactness,
          const PlannerOptions & options = {})
        : planner(options) {
        planner.set_exact_rows(counts);
        plans.resize(strategies.size());
        for (size_t i = 0; i < plans.size(); ++i) {
            if (strategies[i].is_fixed()) plans[i].use(strategies[i]);
            planner.begin_request(plans[i], RequestKind::greedy, false, exactness);
        }
    }

    // Runs one round and returns the number of rows in its batch.
    int round(int n_left = 1000) {
        std::vector<Turn> turns;
        for (SequencePlan & plan : plans) turns.push_back({&plan, {0, n_left, 1, limits}});
        const auto propose = [](const Turn & t) {
            std::vector<std::vector<Candidate>> children(t.plan->frontier().size());
            for (auto & c : children) {
                for (int j = 0; j < t.plan->decision().k; ++j) c.push_back({j + 1, j ? -3.0f - j : -0.2f});
            }
            return children;
        };
        const double draft_ms = draft(planner, turns, propose, [](bool, int) { return 0.4; });
        int n_rows = 0;
        for (const SequencePlan & plan : plans) n_rows += plan.tree().size();
        for (SequencePlan & plan : plans) {
            const auto choose = [&](int) {
                const double u = random.real();
                return Choice{u < 0.8 ? 1 : u < 0.9 ? 2 : 99, false};
            };
            planner.learn(plan, match(plan.tree(), choose).tokens);
        }
        const double verify_ms = 10.0 + ms_per_row * (n_rows - 1);
        planner.end_round(verify_ms, verify_ms + draft_ms + 0.1);
        return n_rows;
    }

    // Runs rounds, checks that every batch with drafts has an exact size, and returns the number of these batches.
    int n_drafted(const RowCounts & counts, int n_rounds) {
        int n_drafted = 0;
        for (int i = 0; i < n_rounds; ++i) {
            const int n = round(i % 40 < 30 ? 1000 : 40 - i % 40);
            CHECK_MSG(n == (int)plans.size() || counts.allows(n), strf("%d rows", n));
            n_drafted += n > (int)plans.size();
        }
        return n_drafted;
    }
};

const Strategy automatic = Strategy::make("auto", 1, 0, 0);

}  // namespace

TEST(only_exact_counts_are_planned) {
    for (const std::vector<int> & exact : {std::vector<int>{2, 3}, {5}, {2, 3, 4, 8, 16}}) {
        const RowCounts counts = counts_of(exact);
        for (const Strategy & s : {automatic, Strategy::make("chain", 1, 6, 6), Strategy::make("tree", 3, 4, 12)}) {
            const int n_drafted = Scene(counts, {s}, Exactness::on).n_drafted(counts, 400);
            CHECK_MSG(n_drafted > 100, strf("%s drafts in %d rounds", s.kind_name(), n_drafted));
        }
        // Drafts do not pay, but the planner tries one from time to time.
        Scene dear(counts, {automatic}, Exactness::on);
        dear.ms_per_row = 15.0;
        CHECK(dear.n_drafted(counts, 4000) > 1);
    }
}

TEST(a_fixed_strategy_is_cut_to_the_next_exact_size) {
    Scene scene(counts_of({2, 3, 4, 8}), {Strategy::make("chain", 1, 6, 6)}, Exactness::on);
    CHECK(scene.round() == 4 && scene.plans[0].exact.cut == 3);
    // The planner skips draft steps whose nodes it could not verify.
    CHECK(scene.plans[0].decision().steps.size() == 3);
    Scene whole(counts_of({2, 3, 4, 8}), {Strategy::make("chain", 1, 7, 7)}, Exactness::on);
    CHECK(whole.round() == 8 && whole.plans[0].exact.cut == -1);
}

TEST(without_exact_sizes_rounds_are_target_only_and_give_the_reason) {
    for (const Strategy & s : {automatic, Strategy::make("chain", 1, 6, 6)}) {
        Scene scene(counts_of({}), {s}, Exactness::on);
        for (int i = 0; i < 20; ++i) CHECK(scene.round() == 1);
        CHECK(scene.plans[0].decision().reason == Decision::Reason::inexact && scene.plans[0].exact.cut == 0);
        CHECK(scene.plans[0].decision().steps.empty());  // the drafter runs no step
    }
    // chain:1 needs a batch of two rows, but only batches of three rows are exact.
    Scene scene(counts_of({3}), {Strategy::make("chain", 1, 1, 1)}, Exactness::on);
    CHECK(scene.round() == 1);
}

TEST(several_conversations_share_an_exact_count) {
    const RowCounts counts = counts_of({4, 6});
    for (const std::vector<Strategy> & s : {std::vector<Strategy>{automatic, automatic},
                                            {Strategy::make("chain", 1, 4, 4), Strategy::make("chain", 1, 3, 3)},
                                            {Strategy::make("chain", 1, 3, 3), automatic}}) {
        const int n_drafted = Scene(counts, s, Exactness::on).n_drafted(counts, 200);
        CHECK_MSG(n_drafted > 20, strf("drafted in %d rounds", n_drafted));
    }
}

TEST(exact_off_allows_any_count) {
    Scene scene(counts_of({}), {Strategy::make("chain", 1, 6, 6)}, Exactness::off);
    CHECK(scene.round() == 7 && !scene.plans[0].exact.is_exact);
}

// In automatic mode, the costs decide. If rows are expensive, the planner avoids large batches anyway. If rows are
// cheap, a large batch gains more than identical bits do.
TEST(automatic_is_exact_where_that_costs_little) {
    const auto is_exact = [](const std::vector<int> & exact, double ms_per_row) {
        Scene scene(counts_of(exact), {automatic}, Exactness::off);
        scene.ms_per_row = ms_per_row;
        for (int i = 0; i < 400; ++i) scene.round();
        scene.planner.begin_request(scene.plans[0], RequestKind::greedy, true, Exactness::automatic);
        scene.round();
        return scene.plans[0].exact.is_exact;
    };
    std::vector<int> all;
    for (int n = 2; n <= 65; ++n) all.push_back(n);
    CHECK(is_exact(all, 0.2));
    CHECK(!is_exact({}, 0.2));
    CHECK(!is_exact({2}, 0.2));
    CHECK(is_exact({}, 12.0));
    CHECK(is_exact({2, 3}, 7.0));
    // In automatic mode, an explicit strategy may use inexact batches.
    Scene scene(counts_of({2, 3}), {Strategy::make("chain", 1, 6, 6)}, Exactness::automatic);
    CHECK(scene.round() == 7 && !scene.plans[0].exact.is_exact);
}

// On a device, each batch size needs a graph, so an answer keeps one size. The planner must first decide whether exact
// sizes are worthwhile. Only then may it restrict the choice to exact sizes.
TEST(a_device_without_exact_batches_drafts_in_the_first_round) {
    PlannerOptions options;
    options.pads_rows = true;
    Scene scene(counts_of({}), {automatic}, Exactness::automatic, options);
    CostTable & costs = scene.planner.costs();  // the costs are measured when an engine opens
    for (int n : {1, 2, 3, 4, 5, 8, 16}) {
        for (int i = 0; i < 3; ++i) costs.learn_verify(n, 10.0 + 0.5 * (n - 1));
    }
    for (int i = 1; i <= 3; ++i) costs.learn_alike(2, i, 1, i < 3 ? 30.0 : 10.0);
    for (int answer = 0; answer < 2; ++answer) {
        scene.planner.begin_request(scene.plans[0], RequestKind::greedy, false, Exactness::automatic);
        CHECK(scene.round() > 1 && !scene.plans[0].exact.is_exact);
    }
}

// On a device, a fixed chain is padded to one batch size per answer. This size must be exact.
TEST(batches_are_padded_to_exact_sizes) {
    PlannerOptions options;
    options.pads_rows = true;
    for (const auto & [exact, n_rows] : {std::pair{std::vector<int>{3, 6}, 3}, {std::vector<int>{3, 7}, 7}}) {
        Scene scene(counts_of(exact), {Strategy::make("chain", 1, 6, 6)}, Exactness::on, options);
        scene.round(4);  // the answer has room for three more tokens
        CHECK(scene.plans[0].tree().size() == 3);
        CHECK(scene.plans[0].tree().size() + scene.planner.n_padding() == n_rows);
    }
}

TEST(the_second_answer_is_as_exact_as_the_first) {
    Scene scene(counts_of({2, 3}), {automatic}, Exactness::off);
    for (int i = 0; i < 400; ++i) scene.round();
    for (double ms_per_row : {0.5, 12.0}) {
        scene.planner.begin_request(scene.plans[0], RequestKind::greedy, true, Exactness::automatic);
        scene.ms_per_row = ms_per_row;
        for (int i = 0; i < 400; ++i) scene.round();
        CHECK(!scene.plans[0].exact.is_exact);
    }
    scene.planner.begin_request(scene.plans[0], RequestKind::greedy, true, Exactness::automatic);
    scene.round();
    CHECK(!scene.plans[0].exact.is_exact);
}
