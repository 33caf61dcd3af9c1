// SPDX-License-Identifier: MIT
#include "algo/mean_chances.h"

namespace eaglecpp {

static constexpr float revisit = 0.03f;  // per level above it

// Deeper levels are expected to be like this one until they were looked at, and a little more so as long as they are
// not: a level that was never tried, or once in a bad moment, would never be tried again.
void MeanChances::learn(int depth, const double * a, int n, float p) {
    const int d = row(depth);
    const float rate = std::max(0.1f, 1.0f / (float)(++n_seen_[d] + 1)) * std::max(p, 0.1f);
    for (int i = 0; i < n; ++i) means_[d][i] += rate * ((float)a[i] - means_[d][i]);
    for (int deeper = d + 1; deeper < n_depths; ++deeper) {
        const float pull = n_seen_[deeper] == 0 ? 1.0f : revisit;
        for (int r = 0; r < n_ranks; ++r) means_[deeper][r] += pull * (means_[d][r] - means_[deeper][r]);
        if (n_seen_[deeper] > 0) return;
    }
}

}  // namespace eaglecpp
