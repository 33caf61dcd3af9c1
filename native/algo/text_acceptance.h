// SPDX-License-Identifier: MIT
// The chance that the target goes on as the text did before. For a node that agrees with the place it is taken from in
// n_match tokens, and given that the target gets there,
//
//     a = sigmoid(weight[source][length of the match] + hits)
//
// Weights belong to the target and the kind of request and are kept on disk; `hits` belongs to one conversation and
// adapts to it within a few rounds. Every round labels the proposals at no cost, even those that were not verified,
// because the target's next token is known anyway.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "algo/acceptance_model.h"
#include "algo/text_index.h"

namespace eaglecpp {

class TextAcceptance {
  public:
    TextAcceptance();

    // a[i]: chance of draft.nodes[i] given its parent; those of siblings sum to at most 1
    void predict(RequestKind kind, const TextTerm & hits, const TextDraft & draft, std::vector<float> & a) const;

    // The target went on with `tokens`.
    void learn(RequestKind kind, TextTerm & hits, const TextDraft & draft, const Tokens & tokens);

    // how well predictions agree with what came, over all kinds of requests
    const Reliability & reliability() const { return reliability_; }

    // persistent part as text (state_text.h); from_text() keeps the old state and returns false if it does not fit
    static constexpr const char * state_kind = "eaglecpp text-acceptance 1";
    std::string to_text(const std::string & key) const;
    bool from_text(const std::string & text, const std::string & key);

  private:
    static constexpr int n_lengths = 10;
    static constexpr int n_sources = 2;  // of TextDraft

    struct Weight {
        double value = 0.0, information = 0.0;
    };
    using Weights = std::array<std::array<Weight, n_lengths>, n_sources>;

    static int length_of(int n_match);
    double chance(RequestKind kind, const TextTerm & hits, const TextDraft::Node & node) const;
    void learn_one(RequestKind kind, TextTerm & hits, const TextDraft::Node & node, bool came);

    std::array<Weights, n_request_kinds> weights_;
    Reliability reliability_;
};

}  // namespace eaglecpp
