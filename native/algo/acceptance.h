// SPDX-License-Identifier: MIT
// The chance that the target agrees: with a drafter (AcceptanceModel), with the text itself (predict_text), and with
// levels that are not drafted yet (MeanChances).
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "algo/learned_state.h"
#include "algo/text.h"
#include "algo/tree.h"

namespace eaglecpp {

// --- acceptance model -----------------------------------------------------------------------------------------------

// Turns the drafter's probabilities into the chance that the target agrees. For the siblings of one node, best first,
// with drafter probabilities q_1 >= q_2 >= ...
//
//     first child    a_1 = sigmoid(slope_1 * logit(q_1) + depth[d] + text_1)
//     k-th child     a_k = (1 - a_1 - ... - a_{k-1}) * sigmoid(slope_2 * logit(q_k / (1 - q_1 - ...)) + rank[k] +
//     text_2)
//
// Under shared noise (algo/coupled.h) q_k is the softmax over the drafter's scores with the noise, so that logit(q_1)
// is the margin of the best over all others, and the logit gets one more term: weight * log(probability before the
// noise). A token that the noise has lifted from far below is less certain than the margin says. Without shared noise
// this term is 0.
//
// Of a block drafter two more terms: weight * (the logit that DSpark's confidence head gives), and one for places
// behind a token that was not the drafter's first, because it drafts all of a block's tokens at once, each for the
// likeliest ones before it.
//
// The target emits one token per position, so a later sibling is judged on what the earlier ones leave over: the
// chances of siblings sum to at most 1 by construction, and the product along a path never rises. Slopes, depth and
// rank terms belong to the drafter and the kind of request and are kept on disk; the text terms belong to one
// conversation and adapt to it within about ten rounds. All of it is online logistic regression with per-parameter
// step sizes; a two-sided CUSUM test on the text term's errors notices a sudden change.
//
// The model may learn only from positions that the target visited. Counting unreached drafts as rejected would teach
// it that deep drafts are never accepted.

// What decides whether two requests can share what was learned.
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

// Temperature <= 0 is greedy, above 0.7 hot; a grammar makes a request constrained. Coupled ones, which are never
// greedy, are cool up to 0.65 and warm up to 0.9.
RequestKind request_kind(double temperature, bool has_grammar, bool is_coupled = false);

// An additive term that follows one text.
struct TextTerm {
    double value = 0.0;
    double variance = 0.5;
    double rise = 0.0, fall = 0.0;  // CUSUM of standardised errors

    // `pull`: towards 0, per label, so that no text locks itself off for good
    void learn(double error, double information, double pull = 0.995);

    // How much of this term the drafter's own terms, which rest on that much information, should take over when the
    // text ends: most of it while little is known about the drafter, little once many texts have been seen.
    double hand_over(double information) const;
};

struct TextState {
    TextTerm first, later;
};

// Where siblings stand: their depth, and how many of the tokens before them were not the drafter's first.
struct DraftSite {
    int depth;
    int n_deviations = 0;
};

class AcceptanceModel {
  public:
    static constexpr int n_ranks_max = 16;  // siblings looked at

    AcceptanceModel();

    // What the drafter's training measured: acceptance at depth 1, 2, ... of the chains that got there. `is_parallel`:
    // what it says of a token does not depend on the ones drafted before it. Moves the start of a model that has
    // learned nothing yet.
    void expect(const std::vector<float> & rates, bool is_parallel = false);

    // The text has ended: keeps part of what it taught and makes `text` ready for another one.
    void end_text(RequestKind kind, TextState & text);

    // Chances a[0..n) that children[i] of the node before this site carries the target's token, given that the target
    // gets there; children best first, n at most n_ranks_max.
    void predict(RequestKind kind, const TextState & text, const DraftSite & site, const Candidate * children, int n,
                 double * a) const;

    // The target emitted children[matched], or none of them (-1).
    void learn(RequestKind kind, TextState & text, const DraftSite & site, const Candidate * children, int n,
               int matched);

    // labels of first children so far
    int n_labels() const { return n_labels_; }

    // The persistent part. set_state() returns false and keeps the old one if `state` does not fit.
    LearnedState state() const;
    bool set_state(const LearnedState & state);

  private:
    static constexpr int n_depths = 12;
    static constexpr int n_rank_terms = 3;  // ranks 2, 3, and 4 on
    static constexpr int n_deviated = 2;    // 1 deviation, and 2 on

    // One coefficient and the information gathered about it.
    struct Weight {
        double value = 0.0;
        double information = 0.0;

        void learn(double error, double information, double x, double memory, double prior);
    };

    // What first children have, or later ones.
    struct Side {
        Weight slope;
        Weight clean;       // of the log-probability before the noise
        Weight confidence;  // of the confidence head's logit
        std::array<Weight, n_deviated> deviated;
        std::vector<Weight> offset;  // by depth, or by rank
        double memory;               // of an offset's information, per label
    };

    struct Class {
        explicit Class(bool is_coupled);

        // in the order in which they are written
        std::vector<Weight *> weights();

        Side first{{}, {}, {}, {}, std::vector<Weight>(n_depths), 0.998};
        Side later{{}, {}, {}, {}, std::vector<Weight>(n_rank_terms), 0.999};
    };

    // the inputs from which the chance of one child is computed
    struct Signs {
        double x;      // logit of its share of what the siblings before leave
        double clean;  // its log-probability before the noise
        double confidence;
        int offset;    // of its depth or its rank
        int deviated;  // -1 = without a deviation
    };

    static Signs signs_of(const Candidate & child, double left, const DraftSite & site, int i);
    static double side_logit(const Side & side, const TextTerm & text, const Signs & signs);

    std::vector<Class> classes_;
    int n_labels_ = 0;
};

// --- text acceptance ------------------------------------------------------------------------------------------------

// The chance that the target goes on as the text did before. For a token before which n_match tokens agree with the
// place it is taken from, and given that the target gets there,
//
//     a = sigmoid(start[length of the match] + hits)
//
// and for a token that a grammar forces, which can only be split otherwise, a = sigmoid(start + forced).
//
// `hits` belongs to one conversation and adapts to it within a few rounds. Every round labels the proposals at no cost,
// even those that were not verified, because the target's next token is known anyway.

struct ChainTerms {
    TextTerm hits, forced;
};

// a[i]: chance of draft.tokens[i], given those before it
void predict_text(RequestKind kind, const ChainTerms & terms, const TextDraft & draft, std::vector<float> & a);

// The same of a token that a grammar forces.
float forced_chance(const ChainTerms & terms, bool is_certain);

// The target went on with `tokens`.
void learn_text(RequestKind kind, ChainTerms & terms, const TextDraft & draft, const Tokens & tokens);

// --- mean chances ---------------------------------------------------------------------------------------------------

// Mean chances of acceptance by depth and rank in one text, used to judge levels that are not drafted yet.
class MeanChances {
  public:
    static constexpr int n_ranks = AcceptanceModel::n_ranks_max;

    MeanChances() {
        for (auto & ranks : means_) {
            for (int r = 0; r < n_ranks; ++r) ranks[r] = r == 0 ? 0.6f : 0.12f / (float)(r * r);
        }
    }

    // [rank - 1]: of the children of a frontier node at depth - 1, given that node
    const std::array<float, n_ranks> & of(int depth) const { return means_[row(depth)]; }

    // The n children of a node that is reached with chance p have chances a[].
    void learn(int depth, const double * a, int n, float p);

  private:
    static constexpr int n_depths = 12;
    static int row(int depth) { return std::clamp(depth, 1, n_depths) - 1; }

    std::array<std::array<float, n_ranks>, n_depths> means_;  // [depth - 1][rank - 1]
    std::array<int, n_depths> n_seen_{};                      // nodes whose children were seen, by depth - 1
};

}  // namespace eaglecpp
