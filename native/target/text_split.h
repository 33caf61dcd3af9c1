// SPDX-License-Identifier: MIT
// What can be said about a text's tokens before llama.cpp tokenises it: where its special tokens are, and how many
// tokens it has at least.
//
// llama.cpp looks for special tokens in a time that grows with the square of how many it finds, and it looks at the
// whole text before anybody can say that it is too long. Both are found here in linear time.
#pragma once

#include <llama.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

// A special token, or the text between two of them: text[begin, end). token: -1 for text
struct TextPart {
    size_t begin, end;
    Token token;
};

class TextSplit {
  public:
    explicit TextSplit(const llama_vocab * vocab) : vocab_(vocab) {}

    // The parts as llama.cpp's tokenizer_st_partition makes them. Each text part is tokenised alone there, so that the
    // tokens of a text are those of its parts, one after the other. None when more than n_most are special tokens.
    std::optional<std::vector<TextPart>> parts(std::string_view text, bool parse_special, size_t n_most);

    // False where parts() cannot know what llama.cpp does: two special tokens of the same length overlap, and the order
    // of its search is not specified then; or its tokenizer adds to each text part what depends on the others.
    bool knows_parts();

    // Whether a text has certainly more than n_most tokens: no chain of n_most tokens of the vocabulary reaches its
    // end, wherever each of them begins. Never true for a text that has n_most or fewer.
    bool exceeds(std::string_view text, const std::vector<TextPart> & parts, size_t n_most);

  private:
    struct Special {
        std::string text;
        Token token;
        bool is_hidden;  // unless special tokens are parsed
        bool strips_left, strips_right;
    };
    enum class Form { bytes, spaces, unknown };  // of token texts: GPT-2's alphabet, U+2581 for spaces

    void look_for_specials();
    void look_at_texts();
    std::string text_of(Token token) const;
    std::string_view token_text(uint32_t i) const {
        return std::string_view(texts_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
    }
    bool is_lost(std::string_view symbol) const;
    size_t longest_at(std::string_view text) const;
    size_t count(std::string_view part, size_t n_most) const;

    const llama_vocab * vocab_;
    std::once_flag looked_for_specials_, looked_at_texts_;

    std::vector<Special> specials_;  // in llama.cpp's order
    bool knows_parts_ = true;
    bool swallows_ = false;  // one of them takes the white space beside it along

    Form form_ = Form::unknown;
    std::array<std::string, 256> alphabet_;
    std::array<bool, 256> is_lost_{};  // bytes that have no token: llama.cpp leaves them out
    bool has_lost_ = false;
    std::string texts_;  // of all tokens, sorted, end to end
    std::vector<uint32_t> offsets_;
    std::vector<uint32_t> first_with_;  // by the first two bytes
    size_t n_longest_ = 1;
};

}  // namespace eaglecpp
