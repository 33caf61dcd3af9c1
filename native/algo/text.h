// SPDX-License-Identifier: MIT
// Drafts from the text itself: what followed the last time the text read as it does now. One index per conversation,
// over prompt and answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

// What a grammar forces. Where other tokens of the same text are allowed too, a token is not certain.
struct ForcedRun {
    Tokens tokens;
    std::vector<bool> is_certain;

    int size() const { return (int)tokens.size(); }
};

// A chain that follows the text's last token: what the grammar forces there, then what the text proposes.
struct TextDraft {
    Tokens tokens;
    int n_match = 0;                    // tokens of the text that agree with the place it is taken from
    int n_forced = 0;                   // by the grammar: the first ones
    std::vector<bool> is_certain = {};  // of these

    int size() const { return (int)tokens.size(); }
    bool empty() const { return tokens.empty(); }
    // tokens before tokens[i] that agree, those of the draft included
    int n_match_before(int i) const { return n_match + i - n_forced; }
};

class TextIndex {
  public:
    // A text longer than `n_max` tokens, by default some 10 MiB, loses its beginning, half of `n_max` at a time.
    explicit TextIndex(int n_max = 1 << 17) : n_max_(std::max(16, n_max)) {}

    // The text is now `text`. If it continues the last one, only what is new is read; any other text is read from the
    // beginning.
    void assign(const Tokens & text);

    // the text goes on
    void add(Token token);

    // nothing is kept
    void clear();

    // Up to n tokens that stand behind the longest suffix of the text that was there before, at its latest place. The
    // text is taken to go on with `more`.
    TextDraft propose(int n, const Tokens & more = {}) const;

  private:
    void index(Token token);
    int n_agreeing(int end, const Tokens & last) const;

    int n_max_;
    Tokens all_;   // what is indexed: the text or its end
    Tokens text_;  // the whole text
    // Places where the same two tokens end, as the index of the second: the last one by these tokens, and by place the
    // one before it, -1 = none. Single tokens recur everywhere.
    std::unordered_map<uint64_t, int32_t> last_;
    std::vector<int32_t> before_;
};

}  // namespace eaglecpp
