// SPDX-License-Identifier: MIT
// The chance that the target goes on as the text did before. For a node that agrees with the place it is taken from in
// n_match tokens, and given that the target gets there,
//
//     a = sigmoid(weight[source][length of the match] + hits)
//
// Where the place at which a copy broke off and the longest match go on differently, both are rarer than either is
// alone; such pairs have weights of their own.
// Weights belong to the target and the kind of request and are kept on disk; `hits` belongs to one conversation and
// follows it within a few rounds, one term for short matches, which recur by chance, and one for long ones, which are
// copies. Every round labels the proposals for nothing, also those that nobody verified: the target's next token is
// known anyway.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "algo/acceptance_model.h"
#include "algo/text_index.h"

namespace eaglecpp {

struct TextHits {
    TextTerm of_short, of_long;

    void restart() {
        of_short.restart();
        of_long.restart();
    }
};

// How much of their chance the text's proposals keep that the drafter was asked about and did not make: what came of
// them in this text against what was expected, little to begin with.
class Contradiction {
  public:
    double share() const { return n_came_ < n_expected_ ? n_came_ / n_expected_ : 1.0; }

    void learn(double expected, bool came) {
        n_came_ = memory * n_came_ + came;
        n_expected_ = memory * n_expected_ + expected;
    }

  private:
    static constexpr double memory = 0.98;
    double n_came_ = 0.4, n_expected_ = 2.0;
};

class TextAcceptance {
  public:
    TextAcceptance();

    // a[i]: chance of draft.nodes[i] given its parent; those of siblings sum to at most 1
    void predict(RequestKind kind, const TextHits & hits, const TextDraft & draft, std::vector<float> & a) const;

    // The target went on with `tokens`.
    void learn(RequestKind kind, TextHits & hits, const TextDraft & draft, const Tokens & tokens);

    // how well predictions agree with what came, all kinds of requests together
    const Reliability & reliability() const { return reliability_; }

    // persistent part as text (state_text.h); from_text() keeps the old state and returns false if it does not fit
    static constexpr const char * state_kind = "eaglecpp text-acceptance 1";
    std::string to_text(const std::string & key) const;
    bool from_text(const std::string & text, const std::string & key);

  private:
    static constexpr int n_lengths = 10;
    static constexpr int n_sources = 3;  // of TextDraft
    static constexpr int n_rows =
        n_sources + 2;  // and the longest match and the resumed copy that contradict each other

    struct Weight {
        double value = 0.0, information = 0.0;
    };
    using Weights = std::array<std::array<Weight, n_lengths>, n_rows>;

    static int length_of(int n_match);
    static int row_of(const TextDraft & draft, int node);
    double chance(RequestKind kind, const TextHits & hits, const TextDraft & draft, int node) const;
    void learn_one(RequestKind kind, TextHits & hits, const TextDraft & draft, int node, bool came);

    std::array<Weights, n_request_kinds> weights_;
    Reliability reliability_;
};

}  // namespace eaglecpp
