// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include <algorithm>
#include <numeric>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

// 0 has children 1 and 2, 1 has 3 and 4, 2 has 5
static DraftTree example() {
    DraftTree t(10);
    t.add(11, 0, -1.0f);
    t.add(12, 0, -2.0f);
    t.add(13, 1, -1.0f);
    t.add(14, 1, -1.5f);
    t.add(15, 2, -1.0f);
    return t;
}

static void knows_its_shape() {
    const DraftTree t = example();
    CHECK(t.size() == 6 && t.n_draft() == 5 && !t.is_chain());
    CHECK(t.depth == (std::vector<int32_t>{0, 1, 1, 2, 2, 2}));
    CHECK(t.logp == (std::vector<float>{0.0f, -1.0f, -2.0f, -2.0f, -2.5f, -3.0f}));
    CHECK(t.leaves() == (std::vector<int32_t>{3, 4, 5}));
    CHECK(t.path(4) == (std::vector<int32_t>{0, 1, 4}) && t.path(0) == (std::vector<int32_t>{0}));
    CHECK(t.child(1, 14) == 4 && t.child(1, 15) == -1 && t.child(5, 1) == -1);
    CHECK(DraftTree(3).is_chain() && DraftTree(3).leaves() == (std::vector<int32_t>{0}));
    DraftTree broken(1);
    CHECK_THROWS(broken.add(2, 1, 0.0f), "parent 1");
    CHECK_THROWS(broken.add(2, -1, 0.0f), "parent -1");
}

static void takes_nodes_in_the_order_given() {
    const DraftTree t = example().take({2, 5, 1});
    CHECK(t.token == (std::vector<Token>{10, 12, 15, 11}) && t.parent == (std::vector<int32_t>{-1, 0, 1, 0}));
    CHECK(t.depth == (std::vector<int32_t>{0, 1, 2, 1}) && t.logp[2] == -3.0f);
}

// 0 -> 1 (token 1) -> 2 (token 2), and 0 -> 3 (token 3)
static DraftTree fork() {
    DraftTree t(0);
    t.add(1, 0, -0.1f);
    t.add(2, 1, -0.1f);
    t.add(3, 0, -2.0f);
    return t;
}

static MatchResult run(const DraftTree & tree, const Tokens & target, size_t stop_after = 99) {
    size_t n = 0;
    return match(tree, [&](int) {
        const Token token = target[n++];
        return Choice{token, n == stop_after};
    });
}

static void follows_the_target() {
    const MatchResult all = run(fork(), {1, 2, 9});
    CHECK(all.nodes == (std::vector<int32_t>{0, 1, 2}) && all.tokens == (Tokens{1, 2, 9}));
    CHECK(all.n_accepted() == 2 && !all.stopped);
    const MatchResult none = run(fork(), {9});
    CHECK(none.nodes == (std::vector<int32_t>{0}) && none.tokens == (Tokens{9}) && none.n_accepted() == 0);
    const MatchResult side = run(fork(), {3, 1});
    CHECK(side.nodes == (std::vector<int32_t>{0, 3}) && side.tokens == (Tokens{3, 1}));
    CHECK(run(DraftTree(0), {1}).tokens == (Tokens{1}));
}

static void nothing_follows_a_stop() {
    const MatchResult at_draft = run(fork(), {1, 2, 9}, 1);
    CHECK(at_draft.tokens == (Tokens{1}) && at_draft.n_accepted() == 1 && at_draft.stopped);
    const MatchResult at_bonus = run(fork(), {1, 9}, 2);
    CHECK(at_bonus.tokens == (Tokens{1, 9}) && at_bonus.n_accepted() == 1 && at_bonus.stopped);
}

// Same seed, same text: whatever the tree, the emitted tokens are the ones a token-by-token run gives, one sample each.
static void emits_what_plain_decoding_would() {
    Random random(5);
    for (int round = 0; round < 300; ++round) {
        DraftTree tree(0);
        for (int i = 0; i < 12; ++i) {
            const int parent = random.integer(0, tree.size() - 1);
            const Token token = random.integer(1, 3);
            if (tree.child(parent, token) < 0) tree.add(token, parent, -1.0f);
        }
        Tokens plain;
        for (int i = 0; i < 20; ++i) plain.push_back(random.integer(1, 3));
        size_t n_sampled = 0;
        const MatchResult r = match(tree, [&](int node) {
            CHECK(tree.depth[node] == (int)n_sampled);
            return Choice{plain[n_sampled++], false};
        });
        CHECK(n_sampled == r.tokens.size() && r.tokens.size() == r.nodes.size());
        CHECK(std::equal(r.tokens.begin(), r.tokens.end(), plain.begin()));
        CHECK(tree.child(r.nodes.back(), r.tokens.back()) < 0);
    }
}

// chances that never rise along a path, with ties
static std::vector<float> random_chances(Random & random, const DraftTree & tree) {
    std::vector<float> p(tree.size(), 1.0f);
    for (int i = 1; i < tree.size(); ++i) p[i] = p[tree.parent[i]] * 0.25f * (float)random.integer(0, 4);
    return p;
}

static double sum_of(const std::vector<float> & p, unsigned set) {
    double sum = 0.0;
    for (size_t i = 1; i < p.size(); ++i) sum += set >> (i - 1) & 1 ? p[i] : 0.0;
    return sum;
}

static void prefixes_are_the_best_sets_of_their_size() {
    Random random(11);
    for (int round = 0; round < 150; ++round) {
        const DraftTree tree = random_tree(random, random.integer(0, 12));
        const std::vector<float> p = random_chances(random, tree);
        NodeOrder order;
        order.build(tree, p, 64, 64);
        CHECK(order.size() == tree.n_draft());
        std::vector<double> best(tree.size(), -1.0);
        for (unsigned set : closed_sets(tree)) {
            double & b = best[count(set)];
            b = std::max(b, sum_of(p, set));
        }
        double sum = 0.0, last_gain = 1e9;
        unsigned set = 0;
        for (int n = 1; n <= order.size(); ++n) {
            const int node = order.nodes()[n - 1], parent = tree.parent[node];
            CHECK(parent == 0 || (set >> (parent - 1) & 1));  // closed under parent
            set |= 1u << (node - 1);
            CHECK(order.p()[n - 1] == p[node] && p[node] <= last_gain);  // concave sums
            last_gain = p[node];
            sum += p[node];
            CHECK_NEAR(sum, best[n], 1e-6);
        }
    }
}

static void a_short_order_is_the_start_of_the_long_one() {
    Random random(12);
    for (int round = 0; round < 100; ++round) {
        const DraftTree tree = random_tree(random, 40);
        const std::vector<float> p = random_chances(random, tree);
        NodeOrder all, some;
        all.build(tree, p, 64, 64);
        some.build(tree, p, 7, 64);
        CHECK(some.size() == 7 && std::equal(some.nodes().begin(), some.nodes().end(), all.nodes().begin()));
    }
}

// Taking the best node that still fits is not always the best under a limit on leaves, but it is close.
static void few_leaves_cost_little() {
    Random random(13);
    double least = 1.0, sum_ratio = 0.0;
    int n_cases = 0;
    for (int round = 0; round < 150; ++round) {
        const DraftTree tree = random_tree(random, random.integer(2, 11));
        const std::vector<float> p = random_chances(random, tree);
        const int limit = random.integer(2, 4), n = random.integer(1, 11);
        NodeOrder order;
        order.build(tree, p, n, limit);
        unsigned set = 0;
        for (int32_t node : order.nodes()) set |= 1u << (node - 1);
        CHECK(n_leaves(tree, set) <= limit);
        double best = 0.0;
        for (unsigned s : closed_sets(tree)) {
            if (count(s) <= n && n_leaves(tree, s) <= limit) best = std::max(best, sum_of(p, s));
        }
        if (best == 0.0) continue;
        least = std::min(least, sum_of(p, set) / best);
        sum_ratio += sum_of(p, set) / best;
        ++n_cases;
    }
    std::printf("under a limit on leaves: %.3f of the best set on average, %.3f at worst\n", sum_ratio / n_cases,
                least);
    CHECK(sum_ratio / n_cases > 0.97);
}

static float sum_logp(const DraftTree & t) {
    return std::accumulate(t.logp.begin(), t.logp.end(), 0.0f);
}

static void selection_is_the_best_of_all_closed_sets() {
    Random random(2);
    for (int round = 0; round < 200; ++round) {
        const DraftTree t = random_tree(random, random.integer(0, 10));
        const int n = random.integer(0, 12);
        const DraftTree chosen = best_subtree(t, n, t.size());
        CHECK(chosen.n_draft() == std::min(n, t.n_draft()));
        float best = -1e9f;
        for (unsigned set : closed_sets(t)) {
            float sum = 0.0f;
            for (int i = 1; i < t.size(); ++i) sum += set >> (i - 1) & 1 ? t.logp[i] : 0.0f;
            if (count(set) == chosen.n_draft()) best = std::max(best, sum);
        }
        CHECK_NEAR(sum_logp(chosen), best, 1e-4);
        for (int i = 1; i < chosen.size(); ++i) {
            CHECK(chosen.parent[i] < i && chosen.depth[i] >= chosen.depth[i - 1]);
            CHECK(chosen.depth[i] == chosen.depth[chosen.parent[i]] + 1);
        }
    }
}

static void selection_keeps_to_its_leaves() {
    Random random(3);
    for (int round = 0; round < 200; ++round) {
        const DraftTree t = random_tree(random, random.integer(1, 25));
        const int n = random.integer(1, 30), n_leaves = random.integer(1, 6);
        const DraftTree chosen = best_subtree(t, n, n_leaves);
        CHECK((int)chosen.leaves().size() <= n_leaves && chosen.n_draft() >= 1 && chosen.n_draft() <= n);
        if (n_leaves == 1) CHECK(chosen.is_chain());
    }
    DraftTree t(10);  // 0 has children 1 and 2, 1 has 3 and 4, 2 has 5
    t.add(11, 0, -1.0f);
    t.add(12, 0, -2.0f);
    t.add(13, 1, -1.0f);
    t.add(14, 1, -1.5f);
    t.add(15, 2, -1.0f);
    CHECK(best_subtree(t, 5, 3).n_draft() == 5);
    CHECK(best_subtree(t, 5, 2).token == (std::vector<Token>{10, 11, 12, 13, 15}));
}

// A token that the text and the drafter propose is one node, likelier than either of them says. What only the text
// proposes keeps a fifth of its chance once the drafter was asked, and children share no more than there is.
static void text_and_drafter_share_a_pool() {
    TextDraft text;
    text.add(100, 0, 5, TextDraft::Source::longest);
    text.add(101, 1, 6, TextDraft::Source::longest);
    text.add(200, 0, 5, TextDraft::Source::resumed);
    const auto pool_with = [&](double of_both, double of_drafter) {
        DraftPool pool;
        pool.begin(9);
        pool.add_text(text, {1.0f, 0.6f, 0.5f, 0.3f});
        CHECK(pool.n_text() == 3 && pool.tree().token == (Tokens{9, 100, 101, 200}));
        pool.begin_level();
        const DraftPool::Proposals drafted = pool.add_children(0, {{100, -0.5f}, {7, -1.5f}, {8, -2.0f}}, 2);
        CHECK(drafted.n == 2 && drafted.nodes[0] == 1 && drafted.nodes[1] == 4);
        const double a[] = {of_both, of_drafter};
        pool.set_chances(0, a, 2);
        CHECK(pool.level() == (std::vector<int32_t>{1, 4}));
        return pool;
    };
    const DraftPool pool = pool_with(0.5, 0.1);
    CHECK_NEAR(pool.given_parent(1), 0.8, 1e-6);
    CHECK_NEAR(pool.given_parent(3), 0.06, 1e-6);
    CHECK_NEAR(pool.given_parent(4), 0.1, 1e-6);
    CHECK_NEAR(pool.p()[2], 0.8 * 0.5, 1e-6);
    CHECK(!pool.is_from_text(1) && pool.is_from_text(2) && pool.is_from_text(3) && !pool.is_from_text(4));
    const DraftPool full = pool_with(0.9, 0.58);  // 0.96, 0.58 and 0.06
    CHECK_NEAR(full.given_parent(1), 0.6, 1e-6);
    CHECK_NEAR(full.given_parent(1) + full.given_parent(3) + full.given_parent(4), 1.0, 1e-6);
    CHECK_NEAR(full.p()[2], 0.6 * 0.5, 1e-6);
    DraftPool last;  // the text's last proposal is found as well
    last.begin(9);
    last.add_text(text, {1.0f, 0.6f, 0.5f, 0.3f});
    CHECK(last.add_children(0, {{200, -0.5f}}, 1).nodes[0] == 3 && last.tree().n_draft() == 3);
}

int main() {
    knows_its_shape();
    takes_nodes_in_the_order_given();
    follows_the_target();
    nothing_follows_a_stop();
    emits_what_plain_decoding_would();
    prefixes_are_the_best_sets_of_their_size();
    a_short_order_is_the_start_of_the_long_one();
    few_leaves_cost_little();
    selection_is_the_best_of_all_closed_sets();
    selection_keeps_to_its_leaves();
    text_and_drafter_share_a_pool();
    return result();
}
