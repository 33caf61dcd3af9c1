// SPDX-License-Identifier: MIT
// A second implementation of EAGLE-2's growth. It is the reference for the planner's fixed strategies.
#pragma once

#include <algorithm>
#include <vector>

#include "algo/tree.h"

namespace eaglecpp {
namespace test {

// Grows a tree in the same way as EAGLE-2. Every frontier node gets its k most likely children, and all children join
// the pool. The k children with the best path log-probability form the next frontier (SafeAILab/EAGLE:
// eagle/model/cnets.py, topK_genrate).
class TreeGrower {
  public:
    TreeGrower(Token root, int k) : k_(k), pool_(root), frontier_{0} {}

    // Returns the nodes that the drafter expands next. At first this is the root.
    const std::vector<int32_t> & frontier() const { return frontier_; }

    const DraftTree & pool() const { return pool_; }

    // Adds the candidates children[i] (best first) below each node frontier()[i]. Then the frontier moves one step
    // deeper.
    void grow(const std::vector<std::vector<Candidate>> & children) {
        std::vector<int32_t> added;
        for (size_t i = 0; i < frontier_.size(); ++i) {
            for (size_t j = 0; j < children[i].size() && j < (size_t)k_; ++j) {
                added.push_back(pool_.add(children[i][j].token, frontier_[i], children[i][j].logp));
            }
        }
        std::stable_sort(added.begin(), added.end(), [&](int a, int b) { return pool_.logp[a] > pool_.logp[b]; });
        added.resize(std::min<size_t>(added.size(), k_));
        frontier_ = added;
    }

  private:
    int k_;
    DraftTree pool_;
    std::vector<int32_t> frontier_;
};

// Returns the subtree with the highest path log-probabilities, in breadth-first order.
inline DraftTree best_subtree(const DraftTree & pool, int n_nodes, int n_leaves) {
    NodeOrder order;
    order.build(pool, pool.logp, n_nodes, n_leaves);
    std::vector<int32_t> nodes = order.nodes();
    const std::vector<int32_t> & depth = pool.depth;
    std::sort(nodes.begin(), nodes.end(),
              [&](int a, int b) { return depth[a] != depth[b] ? depth[a] < depth[b] : a < b; });
    return pool.take(nodes);
}

}  // namespace test
}  // namespace eaglecpp
