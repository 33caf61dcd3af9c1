// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace eaglecpp {

DraftTree::DraftTree(Token root) : token{root}, parent{-1}, depth{0}, logp{0.0f} {}

int DraftTree::add(Token tok, int parent_idx, float logp_step) {
    if (parent_idx < 0 || parent_idx >= size()) {
        fail(ErrorKind::value, "draft tree: parent %d is not one of the %d nodes", parent_idx, size());
    }
    token.push_back(tok);
    parent.push_back(parent_idx);
    depth.push_back(depth[parent_idx] + 1);
    logp.push_back(logp[parent_idx] + logp_step);
    return size() - 1;
}

DraftTree DraftTree::take(const std::vector<int32_t> & nodes) const {
    DraftTree out(token[0]);
    std::vector<int32_t> moved(size(), 0);
    for (int32_t node : nodes) {
        out.token.push_back(token[node]);
        out.parent.push_back(moved[parent[node]]);
        out.depth.push_back(depth[node]);
        out.logp.push_back(logp[node]);
        moved[node] = out.size() - 1;
    }
    return out;
}

DraftTree DraftTree::select(int n_nodes) const {
    return select(n_nodes, size());
}

DraftTree DraftTree::select(int n_nodes, int n_leaves) const {
    std::vector<int32_t> order(n_draft());
    std::iota(order.begin(), order.end(), 1);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logp[a] > logp[b]; });

    // Taken best first, a node adds a leaf unless it is the first child taken of its parent.
    std::vector<int32_t> kept;
    std::vector<uint8_t> is_kept(size(), 0), has_child(size(), 0);
    is_kept[0] = 1;
    int n_used = 1;
    for (int32_t node : order) {
        if ((int)kept.size() == n_nodes) break;
        if (!is_kept[parent[node]]) continue;
        if (has_child[parent[node]] && n_used == n_leaves) continue;
        n_used += has_child[parent[node]];
        has_child[parent[node]] = is_kept[node] = 1;
        kept.push_back(node);
    }
    std::sort(kept.begin(), kept.end(),
              [&](int a, int b) { return depth[a] != depth[b] ? depth[a] < depth[b] : a < b; });
    return take(kept);
}

bool DraftTree::is_chain() const {
    for (int i = 1; i < size(); ++i) {
        if (parent[i] != i - 1) return false;
    }
    return true;
}

std::vector<int32_t> DraftTree::leaves() const {
    std::vector<uint8_t> has_child(size(), 0);
    for (int i = 1; i < size(); ++i) has_child[parent[i]] = 1;
    std::vector<int32_t> out;
    for (int i = 0; i < size(); ++i) {
        if (!has_child[i]) out.push_back(i);
    }
    return out;
}

std::vector<int32_t> DraftTree::path(int node) const {
    std::vector<int32_t> out;
    for (int i = node; i >= 0; i = parent[i]) out.push_back(i);
    std::reverse(out.begin(), out.end());
    return out;
}

int DraftTree::child(int node, Token tok) const {
    for (int i = node + 1; i < size(); ++i) {
        if (parent[i] == node && token[i] == tok) return i;
    }
    return -1;
}

std::vector<uint8_t> DraftTree::ancestor_mask() const {
    const int n = size();
    std::vector<uint8_t> mask((size_t)n * n, 0);
    for (int i = 0; i < n; ++i) {
        if (parent[i] >= 0) std::copy_n(&mask[(size_t)parent[i] * n], n, &mask[(size_t)i * n]);
        mask[(size_t)i * n + i] = 1;
    }
    return mask;
}

}  // namespace eaglecpp
