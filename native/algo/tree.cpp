// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace eaglecpp {

// --- tree -----------------------------------------------------------------------------------------------------------

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

// --- node order -----------------------------------------------------------------------------------------------------

void NodeOrder::build(const DraftTree & pool, const std::vector<float> & p, int n_nodes, int n_leaves) {
    sorted_.resize(pool.n_draft());
    std::iota(sorted_.begin(), sorted_.end(), 1);
    // If nodes are equally likely, the node with the lower index comes first. This node is never the deeper one.
    const auto is_before = [&](int a, int b) { return p[a] != p[b] ? p[a] > p[b] : a < b; };
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

// --- draft pool -----------------------------------------------------------------------------------------------------

static constexpr float a_least = 1e-4f, logp_min = -30.0f;
// If the drafter ran for a node's parent and did not propose the node, a node from the text keeps this share of its
// probability.
static constexpr float text_share = 0.2f;

void DraftPool::begin(Token root) {
    tree_.reset(root);
    p_.assign(1, 1.0f);
    nodes_.assign(1, {});
    proposed_.clear();
    proposed_node_.clear();
    step_.clear();
    n_text_ = 0;
}

int32_t DraftPool::add(Token token, int32_t parent, float logp, float a, bool is_text) {
    p_.push_back(p_[parent] * a);
    nodes_.push_back({a, is_text});
    return tree_.add(token, parent, logp);
}

void DraftPool::add_text(const TextDraft & draft, const std::vector<float> & a) {
    for (int i = 0; i < draft.size(); ++i) add(draft.tokens[i], i, std::log(std::max(a[i], a_least)), a[i], true);
    n_text_ = draft.size();
}

int32_t DraftPool::add_forced(int32_t parent, Token token, float a) {
    const int node = tree_.child(parent, token);
    if (node < 0) return add(token, parent, std::log(a), a, true);
    nodes_[node].a = std::max(nodes_[node].a, a);
    p_[node] = p_[parent] * nodes_[node].a;
    return node;
}

DraftPool::Proposals DraftPool::add_children(int32_t parent, const std::vector<Candidate> & children, int k) {
    const int n = std::min((int)children.size(), k);
    nodes_[parent].first_child = (int)proposed_.size();
    nodes_[parent].n_children = n;
    for (int i = 0; i < n; ++i) {
        const float logp = children[i].logp > logp_min ? std::min(children[i].logp, 0.0f) : logp_min;
        int32_t node = text_child(parent);
        if (node == 0 || tree_.token[node] != children[i].token) {
            node = add(children[i].token, parent, logp, 0.0f, false);
        }
        proposed_.push_back({children[i].token, logp, children[i].logq, children[i].confidence});
        proposed_node_.push_back(node);
        step_.push_back(node);
    }
    return proposals(parent);
}

void DraftPool::set_chances(int32_t parent, const double * a, int n_known) {
    const Proposals drafted = proposals(parent);
    double sum = 0.0;
    for (int i = 0; i < drafted.n; ++i) {
        Node & node = nodes_[drafted.nodes[i]];
        const double own = i < n_known ? a[i] : 0.0;
        node.a = node.is_text ? (float)(1.0 - (1.0 - own) * (1.0 - node.a)) : (float)own;
        node.is_text = false;
        sum += node.a;
    }
    const int32_t rival = text_child(parent);
    const bool has_rival = rival > 0 && nodes_[rival].is_text;
    if (has_rival) sum += nodes_[rival].a *= text_share;
    const float scale = sum > 1.0 ? (float)(1.0 / sum) : 1.0f;
    for (int i = 0; i < drafted.n; ++i) {
        const int node = drafted.nodes[i];
        nodes_[node].a *= scale;
        p_[node] = p_[parent] * nodes_[node].a;
    }
    if (has_rival) nodes_[rival].a *= scale;
    for (int i = parent + 1; i <= n_text_; ++i) p_[i] = p_[i - 1] * nodes_[i].a;
}

int DraftPool::n_deviations(int32_t node) const {
    int n = 0;
    for (; node > 0; node = tree_.parent[node]) {
        const Proposals drafted = proposals(tree_.parent[node]);
        n += drafted.n > 0 && drafted.nodes[0] != node;
    }
    return n;
}

DraftPool::Proposals DraftPool::proposals(int32_t node) const {
    const auto & [a, is_text, first, n] = nodes_[node];
    if (n == 0) return {nullptr, nullptr, 0};
    return {&proposed_[first], &proposed_node_[first], n};
}

void DraftPool::best_p(int n_max, std::vector<float> & out) const {
    out.resize(std::clamp(n_max, 0, tree_.n_draft()));
    std::partial_sort_copy(p_.begin() + 1, p_.end(), out.begin(), out.end(), std::greater<float>());
}

}  // namespace eaglecpp
