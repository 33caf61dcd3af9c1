// SPDX-License-Identifier: MIT
// Drafts by copying from the text: proposes the tokens that followed the last occurrence of the text's current suffix.
// Each conversation has one index over its prompt and answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

// Tokens that a grammar forces. A token is certain if no other tokens could spell the same text.
struct ForcedRun {
    Tokens tokens;
    std::vector<bool> is_certain;

    int size() const { return (int)tokens.size(); }
};

// A chain of draft tokens after the text: first tokens that a grammar forces, then tokens copied from the text.
struct TextDraft {
    Tokens tokens;
    int n_match = 0;                    // number of tokens before the draft that match an earlier part of the text
    int n_forced = 0;                   // forced tokens, at the start of `tokens`
    std::vector<bool> is_certain = {};  // per forced token: no other token could spell the same text

    int size() const { return (int)tokens.size(); }
    bool empty() const { return tokens.empty(); }
    // Returns the length of the match that ends before tokens[i]; the match includes earlier tokens of the draft.
    int n_match_before(int i) const { return n_match + i - n_forced; }
};

class TextIndex {
  public:
    // A text longer than `n_max` tokens (by default about 10 MiB) loses its oldest part: the index keeps only the last
    // half of `n_max` tokens.
    explicit TextIndex(int n_max = 1 << 17) : n_max_(std::max(16, n_max)) {}

    // Sets the text. If the new text continues the old text, only the new tokens are indexed.
    void assign(const Tokens & text);

    // Appends a token to the text.
    void add(Token token);

    void clear();

    // Returns up to n tokens that followed the longest earlier match of the text's suffix. Among equally long matches,
    // the latest counts. `more` is appended to the text for this search only.
    TextDraft propose(int n, const Tokens & more = {}) const;

  private:
    void index(Token token);
    int n_agreeing(int end, const Tokens & last) const;

    int n_max_;
    Tokens all_;   // indexed tokens: the whole text, or its end if the text is too long
    Tokens text_;  // the whole text
    // Positions of each pair of tokens, as the index of the second token. last_ maps a pair to its last position.
    // before_ maps each position to the previous position of the same pair (-1 = no earlier position). Single tokens
    // are not indexed, because they occur too often.
    std::unordered_map<uint64_t, int32_t> last_;
    std::vector<int32_t> before_;
};

}  // namespace eaglecpp
