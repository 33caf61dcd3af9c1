// SPDX-License-Identifier: MIT
// Random numbers and random draft trees for property tests. A seed gives the same numbers on every platform.
#pragma once

#include <algorithm>
#include <bitset>
#include <cmath>
#include <vector>

#include "algo/tree.h"
#include "base/hash.h"

namespace eaglecpp::test {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * mix_step + 1) {}

    uint64_t bits() { return mix(state_ += mix_step); }
    double real() { return (double)(bits() >> 11) * 0x1.0p-53; }  // a number in [0, 1)
    // a number in [from, to]
    int integer(int from, int to) { return from + (int)(bits() % (uint64_t)(to - from + 1)); }

  private:
    uint64_t state_;
};

inline std::vector<float> some_logits(Random & random, int n, double spread) {
    std::vector<float> x(n);
    for (float & v : x) v = (float)(spread * (random.real() + random.real() + random.real() - 1.5));
    return x;
}

// Returns a random tree of n draft nodes in the order of their draft steps. Siblings have different tokens. Many nodes
// have equal probabilities.
inline DraftTree random_tree(Random & random, int n) {
    DraftTree tree(7);
    int first = 0;  // a later node never has a parent with a lower index, so depths never decrease
    for (int i = 0; i < n; ++i) {
        first = random.integer(first, std::min(tree.size() - 1, first + 3));
        tree.add(100 + i, first, -0.25f * (float)random.integer(0, 8));
    }
    return tree;
}

// Returns all sets of draft nodes that contain the parent of each of their nodes. A set is a bit mask in which bit i -
// 1 stands for node i.
inline std::vector<unsigned> closed_sets(const DraftTree & tree) {
    std::vector<unsigned> out;
    for (unsigned set = 0; set < 1u << tree.n_draft(); ++set) {
        bool is_closed = true;
        for (int i = 1; i < tree.size() && is_closed; ++i) {
            const bool is_in = set >> (i - 1) & 1;
            is_closed = !is_in || tree.parent[i] == 0 || (set >> (tree.parent[i] - 1) & 1);
        }
        if (is_closed) out.push_back(set);
    }
    return out;
}

inline int count(unsigned set) {
    return (int)std::bitset<32>(set).count();
}

}  // namespace eaglecpp::test
