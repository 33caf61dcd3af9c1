// SPDX-License-Identifier: MIT
#include "algo/synth.h"

#include "../check.h"
#include "algo/tree.h"
#include "base/error.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static DraftTree chain(int depth) {
    DraftTree t(0);
    for (int i = 0; i < depth; ++i) t.add(10 + i, i, -0.5f);
    return t;
}

static bool ends(Token token) {
    return token == 7;
}

static int n_accepted(const SynthAcceptance & synth, const DraftTree & tree, Pos pos) {
    return match(
               tree,
               [&](int node) { return Choice{synth.choose(tree, node, 50, pos + tree.depth[node], 100, ends), false}; })
        .n_accepted();
}

static void accepts_at_the_given_rates() {
    const std::vector<double> rates = {0.8, 0.6, 0.45};
    const SynthAcceptance synth(rates, 3);
    const int n = 40000;
    std::vector<int> reached(6, 0);
    for (int i = 0; i < n; ++i) {
        const int k = n_accepted(synth, chain(5), 10 * i);
        for (int d = 1; d <= k; ++d) ++reached[d];
    }
    for (int d = 1; d <= 3; ++d) CHECK_NEAR((double)reached[d] / n, rates[d - 1], 0.01);
    CHECK(reached[4] == 0);  // nothing is accepted beyond the given depths
}

static void the_same_seed_gives_the_same_luck_to_every_strategy() {
    const SynthAcceptance a({0.7, 0.5}, 1), b({0.7, 0.5}, 1), c({0.7, 0.5}, 2);
    int n_same = 0;
    for (int pos = 0; pos < 1000; ++pos) {
        CHECK(n_accepted(a, chain(2), pos) == n_accepted(b, chain(2), pos));
        CHECK(std::min(n_accepted(a, chain(2), pos), 1) == n_accepted(a, chain(1), pos));
        n_same += n_accepted(a, chain(2), pos) == n_accepted(c, chain(2), pos);
    }
    CHECK(n_same < 900);
}

static void a_rejected_token_is_no_child() {
    DraftTree tree(0);
    for (Token t : {5, 6, 7}) tree.add(t, 0, -0.1f * (float)t);
    const SynthAcceptance never({0.0}, 1), always({1.0}, 1);
    CHECK(never.choose(tree, 0, 5, 0, 9, ends) == 8);  // 5, 6 and 7 are drafted
    CHECK(never.choose(tree, 0, 3, 0, 9, ends) == 3);
    CHECK(always.choose(tree, 0, 3, 0, 9, ends) == 5);  // the likeliest child
    CHECK(always.choose(tree, 1, 3, 0, 9, ends) == 3);  // a leaf
    DraftTree end(0);
    end.add(7, 0, -0.1f);
    CHECK(always.choose(end, 0, 3, 0, 9, ends) == 3);  // a draft that ends the generation is never accepted
}

static void bad_rates_are_refused() {
    CHECK_THROWS(SynthAcceptance({}, 0), "no rates");
    CHECK_THROWS(SynthAcceptance({0.5, 0.6}, 0), "rate 2 is 0.6");
    CHECK_THROWS(SynthAcceptance({1.5}, 0), "rate 1");
    CHECK_THROWS(SynthAcceptance({std::nan("")}, 0), "rate 1");
}

int main() {
    accepts_at_the_given_rates();
    the_same_seed_gives_the_same_luck_to_every_strategy();
    a_rejected_token_is_no_child();
    bad_rates_are_refused();
    return result();
}
