// SPDX-License-Identifier: MIT
// Chooses the attention window of a drafter in long texts. Most drafters are trained on short texts. In texts far
// beyond that length, more drafts are accepted if the drafter sees only the last tokens (docs/research/drift.md). A
// drafter trained on long texts may need the whole text. So each group of texts of similar length tries both windows
// and keeps the window with more accepted drafts.
//
// A window is the number of last positions that a row attends to; 0 = all positions.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

namespace eaglecpp {

class DraftWindows {
  public:
    static constexpr int narrow = 256, n_short = 1024;  // tokens

    // window: the window of requests that set none. can_narrow: the drafter sees the whole text unless it gets a
    // window.
    explicit DraftWindows(int window = 0, bool can_narrow = true) : window_(window), can_narrow_(can_narrow) {}

    // Returns the window for the next rows of a text with n_tokens tokens. requested: the request's window; < 0 = it
    // sets none. is_free: the window may be chosen, if no window is set.
    int next(int n_tokens, int requested = -1, bool is_free = true) {
        const int window = requested < 0 ? window_ : requested;
        if (window != 0 || !is_free || !can_narrow_ || n_tokens < n_short) return window;
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

    // Reports a round with this window. The target compared n_tried drafts, including the first rejected draft, and
    // accepted n_accepted of them. Ignores windows that next() never returns.
    void learn(int n_tokens, int window, int n_tried, int n_accepted) {
        if (n_tokens < n_short || (window != 0 && window != narrow)) return;
        Arm & arm = group(n_tokens).arms[window > 0];
        arm.tried = keep * arm.tried + n_tried;
        arm.accepted = keep * arm.accepted + n_accepted;
    }

    // Returns the first position that a row at `pos` attends to, in a layer with the window `own` and in a round with
    // the window `window`.
    static int first_seen(int pos, int own, int window) {
        const int narrower = own > 0 && window > 0 ? std::min(own, window) : std::max(own, window);
        return narrower > 0 ? std::max(0, pos - narrower + 1) : 0;
    }

  private:
    static constexpr int n_rounds = 16;       // rounds per turn; a turn keeps one window
    static constexpr int n_turns_again = 16;  // every n_turns_again-th turn uses the worse window
    static constexpr double n_enough = 48.0;  // minimum compared drafts per window before the better window is kept
    static constexpr double keep = 0.998;     // decay of the statistics per round

    struct Arm {
        double tried = 0.0, accepted = 0.0;
        double rate() const { return (accepted + 1.0) / (tried + 2.0); }
    };
    struct Group {
        std::array<Arm, 2> arms;  // [0] without a window, [1] with the narrow window
        int n_left = 0, n_turns = 0;
        bool is_narrow = false;
    };

    // Texts whose lengths differ by less than a factor of two share a group.
    Group & group(int n_tokens) {
        return groups_[std::min<int>(std::ilogb(n_tokens / (double)n_short), groups_.size() - 1)];
    }

    int window_;
    bool can_narrow_;
    std::array<Group, 8> groups_;
};

}  // namespace eaglecpp
