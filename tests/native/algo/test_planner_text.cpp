// SPDX-License-Identifier: MIT
// Tests how the planner uses drafts from the text. It uses them alone or in one tree with the drafter's nodes, and
// stops using them if they do not pay. It keeps trees legal for any proposal, and repeats its decisions from a log.
#include <algorithm>
#include <cstdio>

#include "../check.h"
#include "algo/planner.h"
#include "algo/tree.h"
#include "base/error.h"
#include "play.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

constexpr double plain_ms = 10.0;

// Returns the time of a batch, on a machine on which the first few rows are nearly free.
double verify_ms(int n_rows) {
    return plain_ms * (1.0 + 0.04 * (n_rows - 1));
}

TextDraft text_chain(int n, int n_match, Token from = 100) {
    TextDraft draft;
    for (int i = 0; i < n; ++i) draft.tokens.push_back(from + i);
    draft.n_match = n_match;
    return draft;
}

struct Scene {
    Planner planner;
    SequencePlan plan;
    PlanLimits limits{16, 8, 128};
    int n_pending = 0;  // number of pending rows; 0 means that there is no drafter
    int n_levels = 0;   // number of requested draft steps
    double total_ms = 0.0;
    int n_tokens = 0;

    explicit Scene(bool has_drafter) : n_pending(has_drafter ? 1 : 0) {
        planner.begin_request(plan, RequestKind::greedy, false);
    }

    // Runs one round in which the text continues with `next`. `propose(node)` returns the drafter's candidates for a
    // node of the pool.
    template <typename Propose>
    int round(const TextDraft * draft, const Tokens & next, Propose && propose, int n_left = 100) {
        const auto children = [&](const Turn &) {
            std::vector<std::vector<Candidate>> out;
            for (int node : plan.frontier()) out.push_back(propose(node));
            ++n_levels;
            return out;
        };
        const double ms = test::draft(planner, {{&plan, {0, n_left, n_pending, limits, draft}}}, children,
                                      [](bool, int) { return 1.0; });
        const DraftTree & tree = plan.tree();
        const Tokens tokens = match(tree, [&](int node) {
                                  return Choice{next.at(tree.depth[node]), tree.depth[node] + 1 == (int)next.size()};
                              }).tokens;
        planner.learn(plan, tokens);
        const double verify = verify_ms(tree.size());
        planner.end_round(verify, verify + ms + 0.05);
        total_ms += verify + ms;
        n_tokens += (int)tokens.size();
        return (int)tokens.size();
    }

    int round(const TextDraft * draft, const Tokens & next, int n_left = 100) {
        return round(
            draft, next, [](int) { return std::vector<Candidate>{{7, -2.0f}, {8, -2.5f}, {9, -3.0f}, {6, -3.5f}}; },
            n_left);
    }
};

Tokens run_of(int n, Token from = 100) {
    Tokens out;
    for (int i = 0; i < n; ++i) out.push_back(from + i);
    return out;
}

}  // namespace

// Without a drafter, a copied passage soon yields ten or more tokens per round.
TEST(a_copied_passage_yields_many_tokens_a_round) {
    Scene scene(false);
    const TextDraft draft = text_chain(16, 12);
    for (int i = 0; i < 40; ++i) scene.round(&draft, run_of(30));
    int n = 0;
    for (int i = 0; i < 20; ++i) n += scene.round(&draft, run_of(30));
    CHECK_MSG(n >= 20 * 10, strf("found only %d tokens in 20 rounds", n));
    CHECK(scene.n_levels == 0);
}

// Proposals that never match are hardly ever verified, so they cost almost nothing.
TEST(proposals_that_fail_are_not_verified) {
    Scene scene(false);
    const TextDraft draft = text_chain(16, 8);
    for (int i = 0; i < 100; ++i) scene.round(&draft, run_of(20, 500));
    const double ms = scene.total_ms;
    const int n = scene.n_tokens;
    for (int i = 0; i < 400; ++i) scene.round(&draft, run_of(20, 500));
    const double speed = (scene.n_tokens - n) * plain_ms / (scene.total_ms - ms);
    CHECK_MSG(speed > 0.995, strf("%.4f of target-only speed", speed));
}

// Between target-only rounds, a draft changes the batch size there and back.
TEST(a_short_copy_pays_for_changes_of_size) {
    for (const bool is_dear : {false, true}) {
        Scene scene(false);
        const TextDraft draft = text_chain(1, 8);
        for (int i = 0; i < 10; ++i) scene.round(nullptr, run_of(20));
        if (is_dear) scene.planner.costs().assume_change(5.0);
        scene.round(&draft, run_of(20));
        CHECK((scene.plan.tree().n_draft() > 0) != is_dear);
    }
}

// Every round checks its text proposals against the target's tokens. So the planner notices at once when a passage
// begins to repeat.
TEST(proposals_that_begin_to_match_are_verified) {
    Scene scene(false);
    const TextDraft draft = text_chain(16, 12);
    for (int i = 0; i < 200; ++i) scene.round(&draft, run_of(20, 500));
    int n_waited = 0;
    while (n_waited < 40 && scene.round(&draft, run_of(30)) < 5) ++n_waited;
    CHECK_MSG(n_waited <= 12, strf("%d rounds", n_waited));
}

// If the text proposes a confident copy, the planner verifies the copy without the drafter. Running the drafter would
// only cost time.
TEST(a_sure_copy_needs_no_drafter) {
    Scene scene(true);
    const TextDraft draft = text_chain(16, 20);
    for (int i = 0; i < 60; ++i) scene.round(&draft, run_of(30));
    const int n_levels = scene.n_levels;
    int n = 0;
    for (int i = 0; i < 40; ++i) n += scene.round(&draft, run_of(30));
    CHECK_MSG(scene.n_levels - n_levels <= 12, strf("%d levels", scene.n_levels - n_levels));
    CHECK(n >= 40 * 9);
}

// Drafter and text share one tree. A token that both propose is one node, so the children of a node have different
// tokens.
TEST(both_sources_share_one_tree) {
    Scene scene(true);
    const TextDraft draft = text_chain(2, 4);  // a copy of two tokens is not verified alone
    int n_mixed = 0;
    for (int i = 0; i < 200; ++i) {
        const bool copies = i % 3 != 0;
        scene.round(&draft, copies ? run_of(10) : run_of(10, 500), [&](int node) {
            const int depth = scene.plan.pool().depth[node];
            return std::vector<Candidate>{{node == 0 ? 100 : 700 + depth, -0.2f}, {800 + depth, -1.9f}};
        });
        const DraftTree & tree = scene.plan.tree();
        int n_text = 0, n_drafter = 0;
        for (int a = 1; a < tree.size(); ++a) {
            for (int b = a + 1; b < tree.size(); ++b) {
                CHECK(tree.parent[a] != tree.parent[b] || tree.token[a] != tree.token[b]);
            }
            ++(scene.plan.is_from_text(a) ? n_text : n_drafter);
        }
        n_mixed += n_text > 0 && n_drafter > 0;
    }
    CHECK_MSG(n_mixed > 8, strf("%d rounds", n_mixed));
}

TEST(an_explicit_strategy_drafts_from_the_text) {
    const TextDraft draft = text_chain(10, 3);
    Scene scene(false);
    scene.plan.use(Strategy::make("chain", 1, 5, 5));
    scene.round(&draft, run_of(10));
    CHECK(scene.plan.tree().token == (Tokens{0, 100, 101, 102, 103, 104}));
    scene.plan.use(Strategy::make("tree", 2, 3, 8));
    scene.round(&draft, run_of(10));
    CHECK(scene.plan.tree().n_draft() == 3 && scene.plan.decision().depth == 3);
}

// The planner drafts no nodes after an end token.
TEST(nothing_follows_an_end) {
    PlannerOptions options;
    options.end_tokens = {102};
    Scene scene(false);
    scene.planner = Planner(options);
    scene.plan.use(Strategy::make("chain", 1, 8, 8));
    const TextDraft draft = text_chain(8, 20);
    scene.round(&draft, run_of(10));
    CHECK(scene.plan.tree().token == (Tokens{0, 100, 101, 102}));
}
