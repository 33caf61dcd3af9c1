// SPDX-License-Identifier: MIT
// The draft tree: the tokens that the drafter proposes and the target verifies in one batch. A chain is a tree whose
// nodes have one child each. This file does not depend on ggml, llama.cpp or Python.
//
// Node 0 is the root: the last committed token, which was sampled but not yet run by the target. A parent always has a
// smaller index than its children, so the arrays can be read front to back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "algo/text.h"
#include "base/types.h"

namespace eaglecpp {

// --- tree -----------------------------------------------------------------------------------------------------------

struct DraftTree {
    std::vector<Token> token;     // [n] target token id
    std::vector<int32_t> parent;  // [n] index of the parent; -1 for the root
    std::vector<int32_t> depth;   // [n] 0 for the root
    std::vector<float> logp;      // [n] sum of draft log-probabilities from the root; 0 for the root

    DraftTree() = default;
    explicit DraftTree(Token root) { reset(root); }

    // Resets the tree to only the root.
    void reset(Token root);

    int size() const { return (int)token.size(); }

    // Number of draft nodes: all but the root.
    int n_draft() const { return size() - 1; }

    // Appends a child of `parent_idx` with conditional log-probability `logp_step`. Returns the child's index.
    int add(Token tok, int parent_idx, float logp_step);

    // Returns a tree of the root and these draft nodes, in this order. Each parent must come before its children.
    DraftTree take(const std::vector<int32_t> & nodes) const;

    bool is_chain() const;

    // Returns the nodes without children, in index order.
    std::vector<int32_t> leaves() const;

    // Returns the nodes from the root to `node`, inclusive.
    std::vector<int32_t> path(int node) const;

    // Returns the child of `node` with token `tok`, or -1.
    int child(int node, Token tok) const;
};

// A proposed token. `logp` is the logarithm of the drafter's estimate that the target chooses this token, given the
// path so far. With shared noise (algo/coupled.h), `logp` includes the noise, and `logq` is the drafter's
// log-probability without noise. Without shared noise, `logq` is 0. `confidence` is the drafter's own estimate, as a
// logit, that a draft at this position is accepted; 0 = unknown.
struct Candidate {
    Token token;
    float logp;
    float logq = 0.0f;
    float confidence = 0.0f;
};

// --- node order -----------------------------------------------------------------------------------------------------

// Order of a pool's nodes for verification: a batch of n nodes takes the first n nodes. Probabilities of acceptance
// multiply along a path, so a child never ranks above its parent, and every prefix of the order contains the parents of
// its nodes. Without a limit on leaves, the first n nodes are the best tree of n nodes, and the sum of their
// probabilities is concave in n.
class NodeOrder {
  public:
    // p[i] is the probability that node i of the pool is accepted. p[0] is 1, and no node is likelier than its parent.
    // Takes up to `n_nodes` nodes. Leaves out every node that would give the tree more than `n_leaves` leaves.
    void build(const DraftTree & pool, const std::vector<float> & p, int n_nodes, int n_leaves);

    int size() const { return (int)nodes_.size(); }
    const std::vector<int32_t> & nodes() const { return nodes_; }

    // p()[i] is the probability that the i-th node in this order is accepted.
    const std::vector<float> & p() const { return p_; }

  private:
    std::vector<int32_t> nodes_;
    std::vector<float> p_;
    std::vector<uint8_t> is_taken_, has_child_;  // members to save allocations
    std::vector<int32_t> sorted_;
};

// --- draft pool -----------------------------------------------------------------------------------------------------

// All nodes proposed in one round, with the probabilities that the target accepts them. Nodes copied from the text come
// first, then the drafter's nodes, step by step. If text and drafter propose the same child of a node, the pool has one
// node for it. Node indices in the pool identify the text's proposals and the drafter's rows. The verified nodes form a
// separate tree, whose indices are rows of the batch.
class DraftPool {
  public:
    // The drafter's proposals for the children of one node, best first. n is 0 if the drafter did not run for this
    // node.
    struct Proposals {
        const Candidate * candidates;  // per child: token, and its log-probability without noise, given its parent
        const int32_t * nodes;         // the pool node of each candidate
        int n;
    };

    void begin(Token root);

    // Adds the nodes of the chain copied from the text, before all other nodes. a[i] is the probability of the chain's
    // token i, given the token before it.
    void add_text(const TextDraft & draft, const std::vector<float> & a);

    // Adds a child of `parent` that a grammar forces with probability a. If the child already exists, sets its
    // probability. Returns the child's node.
    int32_t add_forced(int32_t parent, Token token, float a);

    // Starts the next draft step of the drafter.
    void begin_step() { step_.clear(); }

    // Adds the first k of the drafter's `children` to `parent`. The probabilities of new nodes stay 0 until
    // set_chances().
    Proposals add_children(int32_t parent, const std::vector<Candidate> & children, int k);

    // Sets the probabilities of the drafter's children of `parent`: a[0..n) for the first n children, 0 for all other
    // children. A token that text and drafter both propose gets a higher probability than each of their estimates. A
    // token that only the text proposes keeps a fifth of its probability. Only one token can follow, so the
    // probabilities of all children are scaled to a sum of 1 or less.
    void set_chances(int32_t parent, const double * a, int n);

    const DraftTree & tree() const { return tree_; }

    // p()[node] is the probability that the target accepts a node. given_parent() is this probability under the
    // condition that the target accepts the node's parent.
    const std::vector<float> & p() const { return p_; }
    float given_parent(int32_t node) const { return nodes_[node].a; }

    // Number of nodes from the text. They are the nodes 1 to n_text().
    int n_text() const { return n_text_; }

    // Returns true if the node was copied from the text and was not proposed by the drafter.
    bool is_from_text(int32_t node) const { return nodes_[node].is_text; }

    Proposals proposals(int32_t node) const;

    // Number of nodes on the path from the root to `node`, inclusive, that were not the drafter's first choice.
    int n_deviations(int32_t node) const;

    // Nodes that the drafter proposed in its last step.
    const std::vector<int32_t> & step() const { return step_; }

    // Writes the n_max highest probabilities of all nodes to `out`, highest first.
    void best_p(int n_max, std::vector<float> & out) const;

  private:
    int32_t add(Token token, int32_t parent, float logp, float a, bool is_text);
    // Returns the child of `parent` in the text's chain, or 0.
    int32_t text_child(int32_t parent) const { return parent < n_text_ ? parent + 1 : 0; }

    struct Node {
        float a = 1.0f;
        bool is_text = false;
        int first_child = -1, n_children = 0;  // indices into proposed_
    };

    DraftTree tree_;
    std::vector<float> p_;
    std::vector<Node> nodes_;
    int n_text_ = 0;
    std::vector<Candidate> proposed_;
    std::vector<int32_t> proposed_node_;
    std::vector<int32_t> step_;
};

// --- match ----------------------------------------------------------------------------------------------------------

// Result of verification by sampling and matching. At each node, the target's own sampler chooses the next token from
// the target's distribution. If a child of the node has that token, matching continues at the child. Otherwise the
// token is the bonus token and matching ends. The sampler is called exactly once per emitted token, in the order of
// target-only decoding. So the same seed gives the same tokens with any draft or without drafting.
struct MatchResult {
    std::vector<int32_t> nodes;  // the root, then the accepted drafts
    Tokens tokens;               // emitted tokens: the accepted drafts, then the bonus token if there is one
    bool stopped = false;        // `sample` returned `stop` for the last token, or nullopt

    int n_accepted() const { return (int)nodes.size() - 1; }
};

// The target's choice of a token at a node.
struct Choice {
    Token token;
    bool stop;  // no token may follow (end of generation, token limit)
};

// Matches a draft tree with the target's choices. `sample(node)` returns std::optional<Choice>; nullopt means failure.
// It is called for the root, then for each accepted node.
template <typename Sample>
MatchResult match(const DraftTree & tree, Sample && sample) {
    MatchResult out;
    int node = 0;
    while (node >= 0) {
        out.nodes.push_back(node);
        if (out.stopped) break;
        const std::optional<Choice> choice = sample(node);
        out.stopped = !choice || choice->stop;
        if (!choice) break;
        out.tokens.push_back(choice->token);
        node = tree.child(node, choice->token);
    }
    return out;
}

}  // namespace eaglecpp
