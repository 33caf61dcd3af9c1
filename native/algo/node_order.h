// SPDX-License-Identifier: MIT
// The nodes of a pool in the order in which a verify batch should take them. Chances of acceptance multiply along a
// path, so a child never ranks above its parent and every prefix of the order is closed under parent; without a limit
// on leaves the first n nodes are the best n-node tree there is, and the sum of their chances is concave in n.
#pragma once

#include <cstdint>
#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

class NodeOrder {
  public:
    // p[i]: chance that node i of the pool is accepted, p[0] = 1, never above its parent's. At most `n_nodes` nodes;
    // with a limit of `n_leaves`, a node that would add one leaf too many is passed over for good.
    void build(const DraftTree & pool, const std::vector<float> & p, int n_nodes, int n_leaves);

    int size() const { return (int)nodes_.size(); }
    const std::vector<int32_t> & nodes() const { return nodes_; }

    // chance of the i-th node in order
    const std::vector<float> & p() const { return p_; }

  private:
    std::vector<int32_t> nodes_;
    std::vector<float> p_;
    std::vector<uint8_t> is_taken_, has_child_;  // kept to save allocations
    std::vector<int32_t> sorted_;
};

// The best tree by the drafter's own path log-probabilities, breadth first.
DraftTree best_subtree(const DraftTree & pool, int n_nodes, int n_leaves);

}  // namespace eaglecpp
