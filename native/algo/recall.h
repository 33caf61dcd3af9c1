// SPDX-License-Identifier: MIT
// What the target said of late in this text, where the drafter's state was much like the one it drafts from now. A
// drafter that was wrong about a name, a language or a manner of speaking is mostly wrong in the same way a moment
// later. So every draft that was verified leaves a note: the state it was made from, and by how much the target's
// probabilities differed from the drafter's. Rejected drafts do so, too: what the target says behind them is much like
// what it says behind the right token. Later logits get the notes of similar states added, which is what a step
// of gradient descent on the head would do to them (dynamic evaluation, arXiv:1709.07432). And tokens that the draft
// vocabulary lacks can be drafted, too, once the target has thought of them (a continuous cache, arXiv:1612.04426).
//
// What is recalled depends on the text and on its drafts alone. It changes which drafts are made, never what is
// accepted.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "algo/topk.h"
#include "base/types.h"

namespace eaglecpp {

// The likeliest tokens of a distribution: logits[i] is that of ids[i].
struct TokenLogits {
    const float * logits;
    int n;
    const Token * ids;
};

class Recall {
  public:
    static constexpr int n_notes_most = 256;  // the last ones
    using Last = std::array<Token, 4>;        // the tokens that a draft is made behind, newest first; -1: there is none

    // recalls nothing
    Recall() = default;

    // n_state: numbers of a state; d2t: target tokens of the draft vocabulary, which outlive this; n_vocab: of the
    // target
    Recall(int n_state, const std::vector<Token> & d2t, int n_vocab);

    bool is_on() const { return n_state_ > 0; }

    // a round's drafts are made anew
    void begin_round();

    // something was drafted in this round that learn() can be told about
    bool is_waiting() const { return n_guesses_ > 0; }
    // and this node is
    bool is_guess(int node) const { return guess_of(node); }

    // Of the draft logits [d2t.size()] behind `node` and its last tokens, made from state[n_state], the likeliest with
    // what is recalled, in no particular order, and tokens that the draft vocabulary lacks. Valid until the next call.
    // learn() knows the node until begin_round().
    TokenLogits recall(int node, const Last & last, const float * state, const float * logits);

    // How many of the target's logits learn() looks at, if there are so many.
    static constexpr int n_looked_at = 24;

    // The target's largest logits behind a node, best first; they become known with the token at index `pos` of the
    // text, and `pos` never falls from one call to the next. Nothing happens if nobody drafted behind the node.
    // `is_rejected`: it is not part of the text.
    void learn(int node, Pos pos, const TokenLogits & best, bool is_rejected = false);

    // What to divide the temperature of coupled drafts by (algo/coupled.h) in this round, from 1. Noise that lifts a
    // token which the drafter thinks unlikely mostly lifts one that the target thinks less likely still; the more so,
    // the further the two are apart.
    float sharpening() const { return sharpening_; }

    // forgets what was said about tokens [pos, ...)
    void truncate(Pos pos);

    int n_notes() const { return end_ - begin_; }

  private:
    static constexpr int n_differences_most = 8, n_others_most = 8;

    // of one draft, until the target has judged it
    struct Guess {
        int node;
        Last last;
        std::vector<int16_t> state;                 // scaled to length 127
        std::vector<std::pair<int, float>> likely;  // indices of the draft vocabulary and their probabilities
    };

    struct Note {
        Pos pos;
        Last last;
        std::array<std::pair<int, float>, n_differences_most> differences;  // index, the target's probability - ours
        std::array<std::pair<int, float>, n_others_most> others;  // place in lacked_, the target's probability
        int n_differences, n_others;
        float distance;  // total variation
        bool is_rejected;
    };

    Note & note(int i) { return notes_[i % n_notes_most]; }
    int8_t * state(int i) { return states_.data() + (size_t)(i % n_notes_most) * n_state_; }
    const Guess * guess_of(int node) const;
    Guess & add_guess(int node, const Last & last, const float * state);
    void weigh(const Guess & guess);
    int place_of(Token token);
    void compare(const Guess & guess, const TokenLogits & best, Note & note);

    int n_state_ = 0;
    const std::vector<Token> * d2t_ = nullptr;
    std::vector<int> t2d_;  // [n_vocab] index of the draft vocabulary; -1 = the drafter lacks it, -2 - i = lacked_[i]
    std::vector<Token> lacked_;  // as far as they came up
    int begin_ = 0, end_ = 0;    // notes there are, oldest first; their places repeat
    std::vector<Note> notes_;
    std::vector<int8_t> states_;  // [n_notes_most, n_state], of notes
    std::vector<Guess> guesses_;
    int n_guesses_ = 0;
    float sharpening_ = 1.0f;
    Largest largest_;
    // what recall() returns
    std::vector<float> logits_;
    std::vector<Token> ids_;
    // of one call of recall()
    std::vector<int32_t> products_;    // of states
    std::vector<float> added_;         // [d2t.size()] to logits; zero between calls
    std::vector<int> touched_;         // where it is not zero
    std::vector<float> others_;        // [lacked_.size()] probabilities times weights, added up; zero between calls
    std::vector<int> touched_others_;  // where that is not zero
    float others_weight_ = 0.0f;       // the sum of all weights
    std::vector<std::pair<int, float>> differences_;  // of one call of learn()
};

}  // namespace eaglecpp
