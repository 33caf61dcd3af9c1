// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include <algorithm>
#include <numeric>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

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

int main() {
    prefixes_are_the_best_sets_of_their_size();
    a_short_order_is_the_start_of_the_long_one();
    few_leaves_cost_little();
    selection_is_the_best_of_all_closed_sets();
    selection_keeps_to_its_leaves();
    return result();
}
