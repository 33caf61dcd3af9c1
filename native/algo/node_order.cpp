// SPDX-License-Identifier: MIT
#include "algo/node_order.h"

#include <algorithm>
#include <numeric>

namespace eaglecpp {

void NodeOrder::build(const DraftTree & pool, const std::vector<float> & p, int n_nodes, int n_leaves) {
    sorted_.resize(pool.n_draft());
    std::iota(sorted_.begin(), sorted_.end(), 1);
    // equal chances: the earlier index, which is never the deeper node
    const auto is_before = [&](int a, int b) { return p[a] != p[b] ? p[a] > p[b] : a < b; };
    // With one leaf per path at most, passed-over nodes are few; without a limit the first n_nodes decide.
    if (n_leaves >= pool.size() && n_nodes < (int)sorted_.size()) {
        std::nth_element(sorted_.begin(), sorted_.begin() + n_nodes, sorted_.end(), is_before);
        sorted_.resize(n_nodes);
    }
    std::sort(sorted_.begin(), sorted_.end(), is_before);

    nodes_.clear();
    p_.clear();
    is_taken_.assign(pool.size(), 0);
    has_child_.assign(pool.size(), 0);
    is_taken_[0] = 1;
    int n_used = 1;
    for (int32_t node : sorted_) {
        if ((int)nodes_.size() == n_nodes) break;
        const int32_t parent = pool.parent[node];
        if (!is_taken_[parent]) continue;
        if (has_child_[parent] && n_used == n_leaves) continue;
        n_used += has_child_[parent];
        has_child_[parent] = is_taken_[node] = 1;
        nodes_.push_back(node);
        p_.push_back(p[node]);
    }
}

DraftTree best_subtree(const DraftTree & pool, int n_nodes, int n_leaves) {
    NodeOrder order;
    order.build(pool, pool.logp, n_nodes, n_leaves);
    std::vector<int32_t> nodes = order.nodes();
    const std::vector<int32_t> & depth = pool.depth;
    std::sort(nodes.begin(), nodes.end(),
              [&](int a, int b) { return depth[a] != depth[b] ? depth[a] < depth[b] : a < b; });
    return pool.take(nodes);
}

}  // namespace eaglecpp
