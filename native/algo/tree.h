// SPDX-License-Identifier: MIT
// The draft tree: what the drafter proposes and the target verifies in one batch. A chain is a tree whose nodes have
// one child each. Plain values: no ggml, no llama.cpp, no Python.
//
// Node 0 is the root, the committed token that has been sampled but not yet run by the target. A node's parent always
// has a smaller index, so the arrays can be read front to back.
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
};

// One proposed token. `logp` is the logarithm of the drafter's estimate that the target chooses this token, given the
// path so far. Under shared noise (algo/coupled.h) that is not what the drafter's distribution alone says: `logq` is,
// and is 0 without such noise. `confidence` is the drafter's own estimate that a draft at this place holds, as a logit;
// 0 = it has none.
struct Candidate {
    Token token;
    float logp;
    float logq = 0.0f;
    float confidence = 0.0f;
};

// --- node order -----------------------------------------------------------------------------------------------------

// The nodes of a pool in the order in which a verify batch should take them. Chances of acceptance multiply along a
// path, so a child never ranks above its parent and every prefix of the order is closed under parent; without a limit
// on leaves the first n nodes are the best n-node tree there is, and the sum of their chances is concave in n.
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

// --- draft pool -----------------------------------------------------------------------------------------------------

// Everything proposed in one round, with the chances that the target accepts it: the text's nodes first, then the
// drafter's, level by level. A token that both propose as a child of the same node is one node. The numbers that nodes
// have here are those that the text's proposals and the drafter's rows know them by. The nodes that are verified make a
// tree of their own, whose numbers are those of its rows in the batch.
class DraftPool {
  public:
    // what the drafter proposed as children of one node, best first; n = 0 where it was not asked
    struct Proposals {
        const Candidate * candidates;  // token and clean conditional log-probability
        const int32_t * nodes;         // that carry them
        int n;
    };

    void begin(Token root);

    // The first nodes: the chain that the text proposes, with the chances `a` given the parent.
    void add_text(const TextDraft & draft, const std::vector<float> & a);

    // A child of `parent` that a grammar forces with the chance a, whoever else proposed it. Returns its node.
    int32_t add_forced(int32_t parent, Token token, float a);

    // The drafter's next level begins.
    void begin_level() { level_.clear(); }

    // The drafter proposes the first k of these as children of `parent`; their chances are still 0.
    Proposals add_children(int32_t parent, const std::vector<Candidate> & children, int k);

    // The first n of the drafter's children of `parent` have chances a[0..n), its others 0. A token that both propose
    // is likelier than either of them says; one that only the text proposes keeps a fifth of its chance. Only one token
    // can follow, so the chances of all children are kept from adding up to more than 1.
    void set_chances(int32_t parent, const double * a, int n);

    const DraftTree & tree() const { return tree_; }

    // per node: chance that it is accepted; the same given its parent
    const std::vector<float> & p() const { return p_; }
    float given_parent(int32_t node) const { return nodes_[node].a; }

    // nodes that the text proposed are 1 to n_text()
    int n_text() const { return n_text_; }

    // proposed by the text and not by the drafter as well
    bool is_from_text(int32_t node) const { return nodes_[node].is_text; }

    Proposals proposals(int32_t node) const;

    // nodes on the way to this one, itself included, in whose place the drafter had a likelier one
    int n_deviations(int32_t node) const;

    // nodes of the drafter's last level
    const std::vector<int32_t> & level() const { return level_; }

    // the n_max highest chances of all nodes, in falling order
    void best_p(int n_max, std::vector<float> & out) const;

  private:
    int32_t add(Token token, int32_t parent, float logp, float a, bool is_text);
    // the next node of the text's chain that is the drafter's parent's child, too; 0 = none
    int32_t text_child(int32_t parent) const { return parent < n_text_ ? parent + 1 : 0; }

    struct Node {
        float a = 1.0f;
        bool is_text = false;
        int first_child = -1, n_children = 0;  // in proposed_
    };

    DraftTree tree_;
    std::vector<float> p_;
    std::vector<Node> nodes_;
    int n_text_ = 0;
    std::vector<Candidate> proposed_;
    std::vector<int32_t> proposed_node_;
    std::vector<int32_t> level_;
};

// --- match ----------------------------------------------------------------------------------------------------------

// Acceptance by sample and match. At each node the target's own sampler chooses the next token from the target's own
// distribution there; if a child carries that token the walk goes on to it, else the token is the bonus token and the
// walk ends. The sampler is asked exactly once per emitted token and in the order of plain decoding, so the same seed
// gives the same tokens with or without drafting, whatever was drafted.
struct MatchResult {
    std::vector<int32_t> nodes;  // the root, then the accepted drafts
    Tokens tokens;               // emitted tokens: the accepted drafts, then the bonus token if there is one
    bool stopped = false;        // `sample` asked to stop after the last token, or gave none

    int n_accepted() const { return (int)nodes.size() - 1; }
};

// What the target chose at a node.
struct Choice {
    Token token;
    bool stop;  // nothing may follow this token (end of generation, token limit)
};

// sample(node) -> std::optional<Choice>, none where it fails; called for the root first, then for each accepted node
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
