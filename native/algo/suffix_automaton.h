// SPDX-License-Identifier: MIT
// The suffix automaton of a growing text (Blumer et al., 1985): after each token it knows the longest suffix that stood
// in the text before, exactly and in amortised constant time. A text of n tokens has at most 2n states and 3n
// transitions; nothing else is kept.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

class SuffixAutomaton {
  public:
    // A suffix that occurred before: its length and where it ended, the index of its last token.
    struct Match {
        int length = 0;
        int end = -1;
    };

    SuffixAutomaton() { clear(); }

    void clear();

    // tokens so far
    int size() const { return n_; }

    void add(Token token);

    // The longest suffix of the text that also ends earlier in it, with the latest such place that is known; length 0
    // if there is none.
    Match longest() const { return match_; }

    // bytes held
    size_t n_bytes() const;

  private:
    static constexpr int32_t none = -1;

    struct State {
        int32_t length = 0;
        int32_t link = none;
        int32_t end = none;   // index of the last token of an occurrence, the latest that is known
        int32_t edge = none;  // first of its transitions
    };

    struct Edge {
        int32_t from, to, next;
        Token token;
    };

    int32_t add_state(int32_t length, int32_t link, int32_t end);
    int32_t find(int32_t from, Token token) const;
    void add_edge(int32_t from, Token token, int32_t to);
    size_t slot_of(int32_t from, Token token) const;
    void grow_slots();
    int32_t split(int32_t p, Token token, int32_t q);

    int n_ = 0;
    int32_t last_ = 0;
    Match match_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> slots_;  // open addressing: edge numbers by (from, token)
};

}  // namespace eaglecpp
