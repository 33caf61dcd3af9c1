// SPDX-License-Identifier: MIT
// Drafts from the text in the planner: alone, in one tree with the drafter's nodes, off where they do not pay, legal
// whatever is proposed, and repeated from a log.
#include <algorithm>
#include <cstdio>

#include "../check.h"
#include "algo/planner.h"
#include "algo/tree.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

constexpr double plain_ms = 10.0;

// what a machine takes for n rows: the first few are nearly free
double verify_ms(int n_rows) {
    return plain_ms * (1.0 + 0.04 * (n_rows - 1));
}

TextDraft text_chain(int n, int n_match, Token from = 100) {
    TextDraft draft;
    for (int i = 0; i < n; ++i) draft.add(from + i, i, n_match + i, TextDraft::Source::longest);
    return draft;
}

TextDraft some_draft(Random & random) {
    TextDraft draft;
    const int n = random.integer(0, 30);
    for (int i = 0; i < n; ++i) {
        const int parent = random.integer(0, i);
        bool is_new = true;
        const Token token = random.integer(0, 5) * 10;
        for (const TextDraft::Node & node : draft.nodes)
            is_new = is_new && (node.parent != parent || node.token != token);
        if (!is_new) continue;
        if (parent >= draft.size()) continue;
        const int n_match = random.integer(0, 40);
        draft.add(token, parent, n_match, (TextDraft::Source)random.integer(0, 1));
    }
    return draft;
}

struct Scene {
    Planner planner;
    SequencePlan plan;
    PlanLimits limits{16, 8, 128};
    int n_pending = 0;  // 0 = no drafter
    int n_levels = 0;   // drafter levels that were asked for
    double total_ms = 0.0;
    int n_tokens = 0;

    explicit Scene(bool has_drafter) : n_pending(has_drafter ? 1 : 0) {
        planner.begin_request(plan, RequestKind::greedy, false);
    }

    // One round in which the text goes on with `next`; `propose(node)`: the drafter's children of a pool node.
    template <typename Propose>
    int round(const TextDraft * draft, const Tokens & next, Propose && propose, int n_left = 100) {
        planner.begin_round(1);
        planner.decide(plan, {0, n_left, n_pending, limits, draft});
        double ms = 0.0;
        while (!plan.frontier().empty()) {
            std::vector<std::vector<Candidate>> children;
            for (int node : plan.frontier()) children.push_back(propose(node));
            planner.grow(plan, children, 1.0);
            ms += 1.0;
            ++n_levels;
        }
        planner.choose({&plan});
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

// Without a drafter: a copied passage soon runs ten tokens a round and more.
static void a_copied_passage_runs_many_tokens_a_round() {
    Scene scene(false);
    const TextDraft draft = text_chain(16, 12);
    for (int i = 0; i < 40; ++i) scene.round(&draft, run_of(30));
    int n = 0;
    for (int i = 0; i < 20; ++i) n += scene.round(&draft, run_of(30));
    CHECK_MSG(n >= 20 * 10, strf("%d tokens in 20 rounds", n));
    CHECK(scene.n_levels == 0);
}

// What never comes true is hardly ever verified, and costs nothing to speak of.
static void proposals_that_fail_are_not_verified() {
    Scene scene(false);
    const TextDraft draft = text_chain(16, 8);
    for (int i = 0; i < 100; ++i) scene.round(&draft, run_of(20, 500));
    const double ms = scene.total_ms;
    const int n = scene.n_tokens;
    for (int i = 0; i < 400; ++i) scene.round(&draft, run_of(20, 500));
    const double speed = (scene.n_tokens - n) * plain_ms / (scene.total_ms - ms);
    CHECK_MSG(speed > 0.995, strf("%.4f of plain", speed));
}

// And yet a passage that begins to repeat itself is noticed at once: every round labels what was proposed.
static void proposals_that_begin_to_come_true_are_taken_up() {
    Scene scene(false);
    const TextDraft draft = text_chain(16, 12);
    for (int i = 0; i < 200; ++i) scene.round(&draft, run_of(20, 500));
    int n_waited = 0;
    while (n_waited < 40 && scene.round(&draft, run_of(30)) < 5) ++n_waited;
    CHECK_MSG(n_waited <= 12, strf("%d rounds", n_waited));
}

// What a round is compared with must stay true: plain steps are measured now and then, however well drafts do.
static void plain_steps_are_measured_again() {
    Scene scene(false);
    const TextDraft draft = text_chain(16, 12);
    for (int i = 0; i < 100; ++i) scene.round(&draft, run_of(30));
    int n = 0;
    for (int i = 0; i < 800; ++i) {
        scene.round(&draft, run_of(30));
        n += scene.plan.decision().reason == Decision::Reason::measuring;
    }
    CHECK_MSG(n >= 2 && n <= 20, strf("%d of 800 rounds", n));
}

static void nothing_to_propose_is_plain_and_says_so() {
    Scene scene(false);
    const TextDraft nothing;
    for (int i = 0; i < 30; ++i) CHECK(scene.round(&nothing, run_of(5)) == 1);
    CHECK(scene.plan.decision().reason == Decision::Reason::unmatched ||
          scene.plan.decision().reason == Decision::Reason::measuring);
    scene.round(nullptr, run_of(5));
    CHECK(scene.plan.decision().reason == Decision::Reason::off);
}

// Beside a drafter a sure copy is verified alone, for the drafter's levels would only cost.
static void a_sure_copy_needs_no_drafter() {
    Scene scene(true);
    const TextDraft draft = text_chain(16, 20);
    for (int i = 0; i < 60; ++i) scene.round(&draft, run_of(30));
    const int n_levels = scene.n_levels;
    int n = 0;
    for (int i = 0; i < 40; ++i) n += scene.round(&draft, run_of(30));
    CHECK_MSG(scene.n_levels - n_levels <= 12, strf("%d levels", scene.n_levels - n_levels));
    CHECK(n >= 40 * 9);
    CHECK(scene.plan.is_on());  // and the drafter is not blamed for it
}

// Both sources in one tree: a token that both propose is one node, and no two children of a node carry the same token.
static void both_sources_share_one_tree() {
    Scene scene(true);
    const TextDraft draft = text_chain(2, 4);  // 100, 101: too little to go alone
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

// Tokens per plain round with a drafter that is right two times in three, beside proposals of the text that never are.
static double speed_with(bool has_text, int n_match) {
    Scene scene(true);
    Random random(77);
    Tokens truth;
    for (int i = 0; i < 4000; ++i) truth.push_back(random.real() < 0.67 ? 100 : 500);
    int at = 0;
    while (at < 3000) {
        const TextDraft draft = at % 3 ? text_chain(12, n_match, 900) : TextDraft();
        const Tokens next(truth.begin() + at, truth.begin() + at + 40);
        at += scene.round(has_text ? &draft : nullptr, next, [](int) {
            return std::vector<Candidate>{{100, -0.4f}, {500, -1.2f}, {7, -4.0f}, {8, -5.0f}};
        });
    }
    return at * plain_ms / scene.total_ms;
}

static void proposals_that_fail_do_not_hamper_a_drafter() {
    const double off = speed_with(false, 0);
    CHECK_MSG(off > 1.5, strf("%.3f", off));
    for (int n_match : {2, 4, 8, 20}) {
        const double on = speed_with(true, n_match);
        std::printf("matches of %d that fail beside a drafter: %.4f of without\n", n_match, on / off);
        CHECK_MSG(on > 0.99 * off, strf("matches of %d: %.4f of without", n_match, on / off));
    }
}

static void check_legal(const SequencePlan & plan, const PlanLimits & limits, int n_left) {
    const DraftTree & tree = plan.tree();
    CHECK(tree.n_draft() <= std::max(limits.n_nodes, 0) && (int)tree.leaves().size() <= std::max(limits.n_leaves, 1));
    for (int i = 1; i < tree.size(); ++i) {
        CHECK(tree.parent[i] >= 0 && tree.parent[i] < i && tree.depth[i] < std::max(n_left, 1));
        CHECK(tree.depth[i] == tree.depth[tree.parent[i]] + 1);
        CHECK(tree.depth[i] <= tree.depth[i - 1] || tree.parent[i] == i - 1);
    }
}

static void plans_are_legal_whatever_the_text_proposes() {
    for (int seed = 0; seed < 60; ++seed) {
        Random random(900 + seed);
        Scene scene(seed % 2 == 0);
        scene.planner.begin_request(scene.plan, (RequestKind)random.integer(0, n_request_kinds - 1), false);
        if (seed % 6 == 1) scene.plan.use(Strategy::make("chain", 1, 5, 5));
        if (seed % 6 == 3) scene.plan.use(Strategy::make("tree", 2, 4, 9));
        for (int i = 0; i < 200; ++i) {
            const TextDraft draft = some_draft(random);
            scene.limits = {random.integer(0, 32), random.integer(1, 8), random.integer(0, 128)};
            const int n_left = i % 4 ? random.integer(1, 4) : 60;
            Tokens next;
            for (int j = 0; j < 40; ++j) next.push_back(random.integer(0, 5) * 10);
            scene.round(
                &draft, next,
                [&](int) {
                    std::vector<Candidate> out;
                    for (int j = 0; j < scene.plan.k(); ++j) {
                        out.push_back({random.integer(0, 5) * 10 + (j > 1 ? j : 0), -0.5f - (float)j});
                    }
                    return out;
                },
                n_left);
            check_legal(scene.plan, scene.limits, n_left);
            if (seed % 6 == 1) CHECK(scene.plan.tree().is_chain() && scene.plan.tree().n_draft() <= 5);
        }
    }
}

static void chains_and_trees_that_are_asked_for_come_from_the_text() {
    const TextDraft draft = [] {
        TextDraft out = text_chain(10, 3);
        out.add(300, 0, 3, TextDraft::Source::resumed);
        out.add(400, 0, 3, TextDraft::Source::resumed);
        return out;
    }();
    Scene scene(false);
    scene.plan.use(Strategy::make("chain", 1, 5, 5));
    scene.round(&draft, run_of(10));
    CHECK(scene.plan.tree().is_chain() && scene.plan.tree().n_draft() == 5);
    CHECK(scene.plan.tree().token == (Tokens{0, 100, 101, 102, 103, 104}));
    scene.plan.use(Strategy::make("tree", 2, 3, 8));
    scene.round(&draft, run_of(10));
    CHECK(scene.plan.tree().n_draft() == 4 && scene.plan.decision().depth == 3);  // 3 deep, 2 wide at the root
}

// Nothing is drafted behind the end of a generation.
static void nothing_follows_an_end() {
    PlannerOptions options;
    options.end_tokens = {102};
    Scene scene(false);
    scene.planner = Planner(options);
    scene.plan.use(Strategy::make("chain", 1, 8, 8));
    const TextDraft draft = text_chain(8, 20);
    scene.round(&draft, run_of(10));
    CHECK(scene.plan.tree().token == (Tokens{0, 100, 101, 102}));
}

static void what_was_learned_is_kept_with_the_drafters() {
    Scene scene(true);
    const TextDraft draft = text_chain(4, 3);
    for (int i = 0; i < 50; ++i) scene.round(&draft, run_of(10));
    const std::string text = scene.planner.acceptance_to_text("key");
    Planner other;
    CHECK(other.acceptance_from_text(text, "key") && other.acceptance_to_text("key") == text);
    CHECK(!other.acceptance_from_text(text, "other key"));
    CHECK(!other.acceptance_from_text(text.substr(0, text.size() - 40), "key"));
    // files of before know nothing of the text
    CHECK(other.acceptance_from_text(scene.planner.acceptance().to_text("key"), "key"));
}

int main() {
    a_copied_passage_runs_many_tokens_a_round();
    proposals_that_fail_are_not_verified();
    proposals_that_begin_to_come_true_are_taken_up();
    plain_steps_are_measured_again();
    nothing_to_propose_is_plain_and_says_so();
    a_sure_copy_needs_no_drafter();
    both_sources_share_one_tree();
    proposals_that_fail_do_not_hamper_a_drafter();
    plans_are_legal_whatever_the_text_proposes();
    chains_and_trees_that_are_asked_for_come_from_the_text();
    nothing_follows_an_end();
    what_was_learned_is_kept_with_the_drafters();
    return result();
}
