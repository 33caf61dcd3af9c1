// SPDX-License-Identifier: MIT
// The draft tree: what the drafter proposes and the target verifies in one batch. A chain is a tree whose nodes have
// one child each. Plain values: no ggml, no llama.cpp, no Python.
//
// Node 0 is the root, the committed token that has been sampled but not yet run by the target. A node's parent always
// has a smaller index, so the arrays can be read front to back.
#pragma once

#include <vector>

#include "base/types.h"

namespace eaglecpp {

struct DraftTree {
    std::vector<Token> token;     // [n] target token id
    std::vector<int32_t> parent;  // [n] index of the parent; -1 for the root
    std::vector<int32_t> depth;   // [n] the root's is 0
    std::vector<float> logp;      // [n] sum of draft log-probabilities from the root; the root's is 0

    DraftTree() = default;
    explicit DraftTree(Token root) { reset(root); }

    // a root alone
    void reset(Token root);

    int size() const { return (int)token.size(); }

    // number of draft nodes: all but the root
    int n_draft() const { return size() - 1; }

    // appends a child of `parent_idx` with conditional log-probability `logp_step`; returns its index
    int add(Token tok, int parent_idx, float logp_step);

    // the tree of these draft nodes, in their order: parents before their children, none without its parent
    DraftTree take(const std::vector<int32_t> & nodes) const;

    bool is_chain() const;

    // nodes without children, in index order
    std::vector<int32_t> leaves() const;

    // nodes from the root to `node`, both included
    std::vector<int32_t> path(int node) const;

    // child of `node` that carries `tok`, or -1
    int child(int node, Token tok) const;

    // [n * n] row-major: 1 where column is the row's node or one of its ancestors
    std::vector<uint8_t> ancestor_mask() const;
};

// One proposed token. `logp` is the logarithm of the drafter's estimate that the target chooses this token, given the
// path so far. Under shared noise (algo/coupled.h) that is not what the drafter's distribution alone says: `logq` is,
// and is 0 without such noise.
struct Candidate {
    Token token;
    float logp;
    float logq = 0.0f;
};

}  // namespace eaglecpp
