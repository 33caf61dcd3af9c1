// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

// 0 -> 1 (token 1) -> 2 (token 2), and 0 -> 3 (token 3)
static DraftTree example() {
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
    const MatchResult all = run(example(), {1, 2, 9});
    CHECK(all.nodes == (std::vector<int32_t>{0, 1, 2}) && all.tokens == (Tokens{1, 2, 9}));
    CHECK(all.n_accepted() == 2 && all.has_bonus() && !all.stopped);
    const MatchResult none = run(example(), {9});
    CHECK(none.nodes == (std::vector<int32_t>{0}) && none.tokens == (Tokens{9}) && none.n_accepted() == 0);
    const MatchResult side = run(example(), {3, 1});
    CHECK(side.nodes == (std::vector<int32_t>{0, 3}) && side.tokens == (Tokens{3, 1}));
    CHECK(run(DraftTree(0), {1}).tokens == (Tokens{1}));
}

static void nothing_follows_a_stop() {
    const MatchResult at_draft = run(example(), {1, 2, 9}, 1);
    CHECK(at_draft.tokens == (Tokens{1}) && at_draft.n_accepted() == 1 && !at_draft.has_bonus() && at_draft.stopped);
    const MatchResult at_bonus = run(example(), {1, 9}, 2);
    CHECK(at_bonus.tokens == (Tokens{1, 9}) && at_bonus.has_bonus() && at_bonus.stopped);
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

int main() {
    follows_the_target();
    nothing_follows_a_stop();
    emits_what_plain_decoding_would();
    return result();
}
