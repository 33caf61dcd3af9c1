// SPDX-License-Identifier: MIT
#include "engine/drafted_depth.h"

#include "../check.h"

using namespace eaglecpp;

// Wants n_wanted draft steps in each round and gets at most the requested number; returns that number after the rounds.
static int n_asked_after(DraftedDepth & levels, int n_wanted, int n_rounds) {
    for (int round = 0; round < n_rounds; ++round) levels.add(std::min(n_wanted, levels.n_asked()));
    return levels.n_asked();
}

TEST(as_many_levels_are_asked_for_as_drafts_have) {
    DraftedDepth levels;
    CHECK(n_asked_after(levels, 1, 40) == 4);
    CHECK(n_asked_after(levels, 3, 40) == 4);
    const int n_before = levels.n_asked();
    CHECK(n_asked_after(levels, 3, 40) == n_before);  // it settles
    CHECK(n_asked_after(levels, 10, 3) >= 10);        // it grows at once
    CHECK(n_asked_after(levels, 10, 100) == 16);
    CHECK(n_asked_after(levels, 100, 8) >= 100);
    CHECK(n_asked_after(levels, 1 << 20, 1000) == 1024);
    CHECK(n_asked_after(levels, 2, 100) <= 8);
}
