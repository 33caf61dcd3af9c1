// SPDX-License-Identifier: MIT
#include "engine/drafted_depth.h"

#include "../check.h"

using namespace eaglecpp;

// Runs rounds that need n_wanted draft steps, but receive at most the requested number of steps. Returns the number of
// steps that is requested after these rounds.
static int n_requested_after(DraftedDepth & depth, int n_wanted, int n_rounds) {
    for (int round = 0; round < n_rounds; ++round) depth.add(std::min(n_wanted, depth.n_requested()));
    return depth.n_requested();
}

TEST(as_many_levels_are_asked_for_as_drafts_have) {
    DraftedDepth depth;
    CHECK(n_requested_after(depth, 1, 40) == 4);
    CHECK(n_requested_after(depth, 3, 40) == 4);
    const int n_before = depth.n_requested();
    CHECK(n_requested_after(depth, 3, 40) == n_before);  // the requested number settles
    CHECK(n_requested_after(depth, 10, 3) >= 10);        // the requested number grows at once
    CHECK(n_requested_after(depth, 10, 100) == 16);
    CHECK(n_requested_after(depth, 100, 8) >= 100);
    CHECK(n_requested_after(depth, 1 << 20, 1000) == 1024);
    CHECK(n_requested_after(depth, 2, 100) <= 8);
}
