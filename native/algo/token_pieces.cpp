// SPDX-License-Identifier: MIT
#include "algo/token_pieces.h"

#include <algorithm>
#include <utility>

namespace eaglecpp {

TokenPieces::TokenPieces(const std::vector<std::string> & pieces, std::vector<bool> is_end)
    : is_end_(std::move(is_end)) {
    for (Token token = 0; token < size(); ++token) {
        begin_.push_back((uint32_t)bytes_.size());
        if (is_end_[token]) {
            ends_.push_back(token);
            continue;
        }
        const std::string piece = pieces[token].substr(0, pieces[token].find('\0'));
        bytes_ += piece;
        n_longest_ = std::max(n_longest_, piece.size());
        if (!piece.empty()) sorted_.push_back(token);
    }
    begin_.push_back((uint32_t)bytes_.size());
    std::sort(sorted_.begin(), sorted_.end(), [&](Token a, Token b) { return piece(a) < piece(b); });
    std::string_view last;
    for (Token token : sorted_) {
        const std::string_view now = piece(token);
        n_common_.push_back(
            (uint32_t)(std::mismatch(now.begin(), now.begin() + (long)std::min(now.size(), last.size()), last.begin())
                           .first -
                       now.begin()));
        last = now;
    }
}

}  // namespace eaglecpp
