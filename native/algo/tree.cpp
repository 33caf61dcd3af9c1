// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include <algorithm>

#include "base/error.h"

namespace eaglecpp {

void DraftTree::reset(Token root) {
    token.assign(1, root);
    parent.assign(1, -1);
    depth.assign(1, 0);
    logp.assign(1, 0.0f);
}

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
