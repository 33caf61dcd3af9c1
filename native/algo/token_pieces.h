// SPDX-License-Identifier: MIT
// The texts of a vocabulary's tokens, sorted, so that tokens that begin alike are looked at together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

class TokenPieces {
  public:
    // pieces: bytes of each token, as far as the first NUL; is_end: those that end a text, which have no piece
    TokenPieces(const std::vector<std::string> & pieces, std::vector<bool> is_end);

    int size() const { return (int)is_end_.size(); }
    bool is_end(Token token) const { return is_end_[token]; }
    std::string_view piece(Token token) const {
        return std::string_view(bytes_).substr(begin_[token], begin_[token + 1] - begin_[token]);
    }
    size_t n_longest() const { return n_longest_; }

    // tokens with a piece, sorted by it, and how many bytes each has in common with the one before
    const Tokens & sorted() const { return sorted_; }
    const std::vector<uint32_t> & n_common() const { return n_common_; }
    const Tokens & ends() const { return ends_; }

  private:
    std::string bytes_;
    std::vector<uint32_t> begin_;
    std::vector<bool> is_end_;
    Tokens sorted_, ends_;
    std::vector<uint32_t> n_common_;
    size_t n_longest_ = 0;
};

}  // namespace eaglecpp
