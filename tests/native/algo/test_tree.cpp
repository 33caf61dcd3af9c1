// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include <algorithm>
#include <numeric>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

// Returns a tree in which node 0 has children 1 and 2, node 1 has children 3 and 4, and node 2 has child 5.
static DraftTree example() {
    DraftTree t(10);
    t.add(11, 0, -1.0f);
    t.add(12, 0, -2.0f);
    t.add(13, 1, -1.0f);
    t.add(14, 1, -1.5f);
    t.add(15, 2, -1.0f);
    return t;
}

TEST(knows_its_shape) {
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

TEST(takes_nodes_in_the_order_given) {
    const DraftTree t = example().take({2, 5, 1});
    CHECK(t.token == (std::vector<Token>{10, 12, 15, 11}) && t.parent == (std::vector<int32_t>{-1, 0, 1, 0}));
    CHECK(t.depth == (std::vector<int32_t>{0, 1, 2, 1}) && t.logp[2] == -3.0f);
}

// Returns a tree with two paths: 0 -> 1 (token 1) -> 2 (token 2), and 0 -> 3 (token 3).
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

TEST(the_walk_ends_where_no_child_carries_the_targets_token) {
    Random random(12);
    for (int round = 0; round < 300; ++round) {
        const DraftTree tree = random_tree(random, random.integer(0, 30));
        Tokens chosen(tree.size());
        for (Token & token : chosen) token = 99;  // the tree contains no such token
        for (int i = 1; i < tree.size(); ++i) {
            if (random.real() < 0.8) chosen[tree.parent[i]] = tree.token[i];
        }
        const MatchResult found = match(tree, [&](int node) { return Choice{chosen[node], false}; });
        for (size_t i = 0; i < found.nodes.size(); ++i) {
            const int node = found.nodes[i];
            CHECK(found.tokens[i] == chosen[node]);
            CHECK(tree.child(node, chosen[node]) == (i + 1 < found.nodes.size() ? found.nodes[i + 1] : -1));
        }
        CHECK(found.nodes[0] == 0 && found.tokens.size() == found.nodes.size());
    }
}

TEST(nothing_follows_a_stop) {
    const MatchResult at_draft = run(fork(), {1, 2, 9}, 1);
    CHECK(at_draft.tokens == (Tokens{1}) && at_draft.n_accepted() == 1 && at_draft.stopped);
    const MatchResult at_bonus = run(fork(), {1, 9}, 2);
    CHECK(at_bonus.tokens == (Tokens{1, 9}) && at_bonus.n_accepted() == 1 && at_bonus.stopped);
}

// Returns a probability for each node. Probabilities never rise along a path. Some of them are equal.
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

TEST(prefixes_are_the_best_sets_of_their_size) {
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
            CHECK(parent == 0 || (set >> (parent - 1) & 1));  // the set contains the node's parent
            set |= 1u << (node - 1);
            CHECK(order.p()[n - 1] == p[node] && p[node] <= last_gain);  // later nodes never gain more
            last_gain = p[node];
            sum += p[node];
            CHECK_NEAR(sum, best[n], 1e-6);
        }
    }
}

// A token that the text and the drafter both propose becomes one node. Its probability is higher than each of the two
// predictions. A token that only the text proposes keeps a fifth of its probability once the drafter has run. The
// probabilities of a node's children add up to at most 1.
TEST(text_and_drafter_share_a_pool) {
    const TextDraft text{{100, 101}, 5};
    const auto pool_with = [&](Token first, double of_first, double of_second) {
        DraftPool pool;
        pool.begin(9);
        pool.add_text(text, {0.6f, 0.5f});
        CHECK(pool.n_text() == 2 && pool.tree().token == (Tokens{9, 100, 101}));
        pool.begin_step();
        const DraftPool::Proposals drafted = pool.add_children(0, {{first, -0.5f}, {7, -1.5f}, {8, -2.0f}}, 2);
        CHECK(drafted.n == 2 && drafted.nodes[0] == (first == 100 ? 1 : 3));
        const double a[] = {of_first, of_second};
        pool.set_chances(0, a, 2);
        CHECK(pool.step() == (std::vector<int32_t>{drafted.nodes[0], drafted.nodes[0] == 1 ? 3 : 4}));
        return pool;
    };
    const DraftPool both = pool_with(100, 0.5, 0.1);
    CHECK_NEAR(both.given_parent(1), 0.8, 1e-6);
    CHECK_NEAR(both.given_parent(3), 0.1, 1e-6);
    CHECK_NEAR(both.p()[2], 0.8 * 0.5, 1e-6);
    CHECK(!both.is_from_text(1) && both.is_from_text(2) && !both.is_from_text(3));
    const DraftPool alone = pool_with(6, 0.5, 0.1);
    CHECK_NEAR(alone.given_parent(1), 0.2 * 0.6, 1e-6);
    CHECK_NEAR(alone.p()[2], 0.2 * 0.6 * 0.5, 1e-6);
    CHECK(alone.is_from_text(1) && !alone.is_from_text(3) && !alone.is_from_text(4));
    const DraftPool full = pool_with(100, 0.9, 0.64);  // the probabilities 0.96 and 0.64, scaled to the sum 1
    CHECK_NEAR(full.given_parent(1), 0.6, 1e-6);
    CHECK_NEAR(full.given_parent(1) + full.given_parent(3), 1.0, 1e-6);
    CHECK_NEAR(full.p()[2], 0.6 * 0.5, 1e-6);
}
