// SPDX-License-Identifier: MIT
// Estimates the probability that the target accepts a draft. AcceptanceModel covers drafts of a drafter, predict_text()
// covers drafts copied from the text, and MeanChances covers draft steps that have not run yet.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "algo/learned_state.h"
#include "algo/text.h"
#include "algo/tree.h"

namespace eaglecpp {

// --- acceptance model -----------------------------------------------------------------------------------------------

// Turns a drafter's probabilities into probabilities that the target accepts the drafted tokens. Siblings are sorted
// best first and have the drafter probabilities q_1 >= q_2 >= ...
//
//     first child    a_1 = sigmoid(slope_1 * logit(q_1) + depth[d] + text_1)
//     k-th child     a_k = (1 - a_1 - ... - a_{k-1}) * sigmoid(slope_2 * logit(q_k / (1 - q_1 - ...)) + rank[k] +
//     text_2)
//
// With shared noise (algo/coupled.h), q_k is the softmax over the sums of log-probability and noise. Then logit(q_1) is
// the margin of the best token over all others. The logit gets one more term: weight * log(probability before the
// noise). The reason: a token with high noise and a low probability is less certain than its margin suggests. Without
// shared noise the term is 0.
//
// Block drafters add two terms. The first term is weight * (the logit of DSpark's confidence head). The second term
// applies to positions after a token that was not the drafter's first choice. It is needed because a block drafter
// drafts all tokens of a block at once: for each token, it assumes that the likeliest tokens precede it.
//
// The target emits one token per position, so a later sibling gets a share of the probability that earlier siblings
// leave. By construction, the probabilities of siblings sum to 1 or less, and the product along a path never rises.
// Slopes, depth terms and rank terms belong to the drafter and the kind of request, and are saved to disk. Text terms
// belong to one conversation and adapt within about ten rounds. All terms are learned by online logistic regression
// with a step size per parameter.
//
// The model learns only from positions that the target reached. Counting unreached drafts as rejected would teach it
// that deep drafts are never accepted.

// Kind of a request. Requests of the same kind share statistics.
enum class RequestKind {
    greedy,
    sampled,
    hot,
    constrained,
    coupled_cool,
    coupled_warm,
    coupled_hot,
    coupled_constrained
};
constexpr int n_request_kinds = 8;

// Returns the kind of a request. A grammar makes every request constrained. Other requests without shared noise are
// greedy at temperatures <= 0 and hot above 0.7. Other coupled requests are cool up to temperature 0.65 and hot above
// 0.9.
RequestKind request_kind(double temperature, bool has_grammar, bool is_coupled = false);

// An additive term of the acceptance logit that adapts to one text.
struct TextTerm {
    double value = 0.0;
    double variance = 0.5;

    // Updates the term with one label (accepted or rejected).
    void learn(double error, double information);

    // Returns the part of this term that moves into the drafter's own terms when the text ends. `information` is the
    // Fisher information of the drafter's terms. The part is large while little is known about the drafter, and small
    // after many texts.
    double hand_over(double information) const;
};

struct TextState {
    TextTerm first, later;
};

// Position of sibling drafts: their depth, and how many tokens on the path to them were not the drafter's first choice.
struct DraftSite {
    int depth;
    int n_deviations = 0;
};

class AcceptanceModel {
  public:
    static constexpr int n_ranks_max = 16;  // maximum number of siblings

    AcceptanceModel();

    // Sets the prior of a model that has learned nothing yet. rates[i] is the acceptance rate at depth i + 1. It was
    // measured during the drafter's training, on the chains that reached this depth. is_parallel: the drafter's
    // distribution for a token does not depend on the drafts before this token.
    void expect(const std::vector<float> & rates, bool is_parallel = false);

    // Ends the text: moves part of the text terms into the drafter's own terms, and resets `text` for the next text.
    void end_text(RequestKind kind, TextState & text);

    // Computes a[0..n). a[i] is the probability that the target chooses children[i], given that the target reaches
    // their parent. `site` is the position of the children. The children are sorted best first; n <= n_ranks_max.
    void predict(RequestKind kind, const TextState & text, const DraftSite & site, const Candidate * children, int n,
                 double * a) const;

    // Updates the model with the target's token: children[matched], or another token if `matched` is -1.
    void learn(RequestKind kind, TextState & text, const DraftSite & site, const Candidate * children, int n,
               int matched);

    // Number of labels (accepted or rejected) of first children that the model has learned from.
    int64_t n_labels() const { return n_labels_; }

    // The part of the model that is saved to disk. set_state() returns false and keeps the old state if `state` has the
    // wrong form.
    LearnedState state() const;
    bool set_state(const LearnedState & state);

  private:
    static constexpr int n_depths = 12;
    static constexpr int n_rank_terms = 3;  // terms of later siblings: for rank 2, for rank 3, and for rank 4 or more
    static constexpr int n_deviated = 2;    // terms for 1 token that was not the first choice, and for 2 or more

    // A coefficient and its Fisher information.
    struct Weight {
        double value = 0.0;
        double information = 0.0;

        void learn(double error, double information, double x, double memory, double prior);
    };

    // Coefficients for first children, or for all later siblings.
    struct Side {
        Weight slope;
        Weight clean;       // coefficient of the log-probability before the noise
        Weight confidence;  // coefficient of the confidence head's logit
        std::array<Weight, n_deviated> deviated;
        std::vector<Weight> offset;  // indexed by depth for first children, by rank for later siblings
        double memory;               // decay of an offset's information per label
    };

    struct Class {
        explicit Class(bool is_coupled);

        // All coefficients, in the order of serialisation.
        std::vector<Weight *> weights();

        Side first{{}, {}, {}, {}, std::vector<Weight>(n_depths), 0.998};
        Side later{{}, {}, {}, {}, std::vector<Weight>(n_rank_terms), 0.999};
    };

    // Inputs of the model for one child.
    struct Signs {
        double x;      // logit of the child's share of the probability that remains after earlier siblings
        double clean;  // the child's log-probability before the noise
        double confidence;
        int offset;    // index into Side::offset
        int deviated;  // number of tokens that were not the first choice, as an index; -1 = no such token
    };

    static Signs signs_of(const Candidate & child, double left, const DraftSite & site, int i);
    static double side_logit(const Side & side, const TextTerm & text, const Signs & signs);

    std::vector<Class> classes_;
    int64_t n_labels_ = 0;
};

// --- text acceptance ------------------------------------------------------------------------------------------------

// Estimates the probability that a text which repeats itself continues as it did before. For a token after a match of
// n_match tokens, given that the target accepts all tokens before this token:
//
//     a = sigmoid(start[length of the match] + hits)
//
// If a grammar forces the text, the target can only tokenize it differently. Then a = sigmoid(start + forced).
//
// `hits` belongs to one conversation and adapts within a few rounds. Every round labels all proposed tokens, even
// unverified tokens, because the target's next token is known anyway.

struct ChainTerms {
    TextTerm hits, forced;
};

// Computes a[i]: the probability that the target accepts draft.tokens[i], given that it accepts the tokens before.
void predict_text(RequestKind kind, const ChainTerms & terms, const TextDraft & draft, std::vector<float> & a);

// Probability that the target emits a token that a grammar forces.
float forced_chance(const ChainTerms & terms, bool is_certain);

// Updates the terms with the `tokens` that the target emitted at the position of `draft`.
void learn_text(RequestKind kind, ChainTerms & terms, const TextDraft & draft, const Tokens & tokens);

// --- mean chances ---------------------------------------------------------------------------------------------------

// Mean probabilities of acceptance by depth and rank in one text. They predict the gain of draft steps that have not
// run yet.
class MeanChances {
  public:
    static constexpr int n_ranks = AcceptanceModel::n_ranks_max;

    MeanChances() {
        for (auto & ranks : means_) {
            for (int r = 0; r < n_ranks; ++r) ranks[r] = r == 0 ? 0.6f : 0.12f / (float)(r * r);
        }
    }

    // Returns the mean probabilities of children at this depth, given that the target reaches their parent. The index
    // is rank - 1.
    const std::array<float, n_ranks> & of(int depth) const { return means_[row(depth)]; }

    // Updates the means with n siblings whose parent the target reaches with probability p. a[i] is the probability of
    // sibling i.
    void learn(int depth, const double * a, int n, float p);

  private:
    static constexpr int n_depths = 12;
    static int row(int depth) { return std::clamp(depth, 1, n_depths) - 1; }

    std::array<std::array<float, n_ranks>, n_depths> means_;  // indexed by [depth - 1][rank - 1]
    std::array<int, n_depths> n_seen_{};  // [depth - 1]: number of nodes whose children were counted, up to 9
};

}  // namespace eaglecpp
