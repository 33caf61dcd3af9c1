// SPDX-License-Identifier: MIT
// Everything proposed in one round, with the chances that the target accepts it: the text's nodes first, then the
// drafter's, level by level. A token that both propose as a child of the same node is one node.
#pragma once

#include <vector>

#include "algo/text_index.h"
#include "algo/tree.h"

namespace eaglecpp {

class DraftPool {
  public:
    // what the drafter proposed as children of one node, best first; n = 0 where it was not asked
    struct Proposals {
        const Candidate * candidates;  // token and clean conditional log-probability
        const int32_t * nodes;         // that carry them
        int n;
    };

    void begin(Token root);

    // Adds the text's proposals with their chances `a` given the parent: k children per node at most (0 = any number),
    // none deeper than `reach`, none after one of `ends`.
    void add_text(const TextDraft & draft, const std::vector<float> & a, int k, int reach,
                  const std::vector<Token> & ends);

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
    float given_parent(int32_t node) const { return a_[node]; }

    // nodes that the text proposed are 1 to n_text()
    int n_text() const { return n_text_; }

    // proposed by the text and not by the drafter as well
    bool is_from_text(int32_t node) const { return is_text_[node]; }

    Proposals proposals(int32_t node) const;

    // nodes of the drafter's last level
    const std::vector<int32_t> & level() const { return level_; }

    // the n_most highest chances of all nodes, in falling order
    void best_p(int n_most, std::vector<float> & out) const;

  private:
    int32_t add(Token token, int32_t parent, float logp, float a, bool is_text);
    int32_t text_child(int32_t parent, Token token) const;

    DraftTree tree_;
    std::vector<float> p_, a_;
    std::vector<uint8_t> is_text_;
    int n_text_ = 0;
    std::vector<Candidate> proposed_;
    std::vector<int32_t> proposed_node_;
    std::vector<int32_t> first_child_, n_children_;  // per node, in proposed_
    std::vector<int32_t> level_, numbers_;
};

}  // namespace eaglecpp
