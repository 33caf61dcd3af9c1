// SPDX-License-Identifier: MIT
// How far back a drafter looks in long texts. Drafters are trained on short ones, and far beyond those more of their
// drafts are accepted if they see the last tokens alone (docs/research/drift.md); one that was trained on long texts
// may need what lies further back. So both are tried, in texts of about the same length, and the better one is kept.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

namespace eaglecpp {

class DraftWindows {
  public:
    static constexpr int narrow = 256, n_short = 1024;  // tokens

    // of the next round of a text of so many tokens; 0 = all that the drafter can see
    int next(int n_tokens) {
        if (n_tokens < n_short) return 0;
        Group & g = group(n_tokens);
        if (g.n_left == 0) {
            g.n_left = n_rounds;
            const bool is_better = g.arms[1].rate() >= g.arms[0].rate();
            const int rare = g.arms[1].tried > g.arms[0].tried ? 0 : 1;
            g.is_narrow = g.arms[rare].tried < n_enough ? rare == 1 : is_better != (++g.n_turns % n_turns_again == 0);
        }
        --g.n_left;
        return g.is_narrow ? narrow : 0;
    }

    // Of a round with this window: how many drafts had their turn, the first rejected one included, and were accepted.
    // Of others than the two nothing is learnt.
    void learn(int n_tokens, int window, int n_tried, int n_accepted) {
        if (n_tokens < n_short || (window != 0 && window != narrow)) return;
        Arm & arm = group(n_tokens).arms[window > 0];
        arm.tried = keep * arm.tried + n_tried;
        arm.accepted = keep * arm.accepted + n_accepted;
    }

  private:
    static constexpr int n_rounds = 16;       // of one turn
    static constexpr int n_turns_again = 16;  // after so many the worse one has another
    static constexpr double n_enough = 48.0;  // drafts, before the better one is kept
    static constexpr double keep = 0.998;     // of what was learnt, a round

    struct Arm {
        double tried = 0.0, accepted = 0.0;
        double rate() const { return (accepted + 1.0) / (tried + 2.0); }
    };
    struct Group {
        std::array<Arm, 2> arms;  // without a window and with it
        int n_left = 0, n_turns = 0;
        bool is_narrow = false;
    };

    // texts up to twice as long as each other
    Group & group(int n_tokens) {
        return groups_[std::min<int>(std::ilogb(n_tokens / (double)n_short), groups_.size() - 1)];
    }

    std::array<Group, 8> groups_;
};

}  // namespace eaglecpp
