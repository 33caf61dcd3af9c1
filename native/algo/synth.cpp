// SPDX-License-Identifier: MIT
#include "algo/synth.h"

#include <algorithm>

#include "base/error.h"

namespace eaglecpp {

// splitmix64 (Vigna), as a number in [0, 1)
static double uniform(uint64_t seed, uint64_t i) {
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

SynthAcceptance::SynthAcceptance(const std::vector<double> & rates, uint64_t seed) : seed_(seed) {
    if (rates.empty()) fail(ErrorKind::value, "synthetic acceptance: no rates; expected for example 0.8,0.6,0.45");
    double above = 1.0;
    for (size_t i = 0; i < rates.size(); ++i) {
        if (!(rates[i] >= 0.0 && rates[i] <= above)) {
            fail(ErrorKind::value,
                 "synthetic acceptance: rate %zu is %g, expected a number from 0 to %g (rates count "
                 "from the root and cannot rise)",
                 i + 1, rates[i], above);
        }
        conditional_.push_back(above > 0.0 ? rates[i] / above : 0.0);
        above = rates[i];
    }
}

Token SynthAcceptance::choose(const DraftTree & pool, int node, Token sampled, Pos pos, int n_vocab,
                              const std::function<bool(Token)> & is_end) const {
    int best = -1;
    for (int i = node + 1; i < pool.size(); ++i) {
        if (pool.parent[i] == node && (best < 0 || pool.logp[i] > pool.logp[best])) best = i;
    }
    if (best < 0) return sampled;
    const int depth = pool.depth[node];
    const double rate = depth < (int)conditional_.size() ? conditional_[depth] : 0.0;
    if (uniform(seed_, (uint64_t)pos) < rate && !is_end(pool.token[best])) return pool.token[best];
    for (int i = 0; i < n_vocab && pool.child(node, sampled) >= 0; ++i) sampled = (sampled + 1) % n_vocab;
    return sampled;
}

}  // namespace eaglecpp
