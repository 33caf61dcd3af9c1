// SPDX-License-Identifier: MIT
#include "target/vocabulary.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <utility>

#include "base/error.h"

namespace eaglecpp {

std::vector<Token> Vocabulary::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    std::vector<Token> out(text.size() + 8);
    int n = llama_tokenize(vocab_, text.data(), (int32_t)text.size(), out.data(), (int32_t)out.size(), add_special,
                           parse_special);
    if (n == INT32_MIN) fail(ErrorKind::value, "the text is too long to tokenise in one piece");
    if (n < 0) {
        out.resize(-n);
        n = llama_tokenize(vocab_, text.data(), (int32_t)text.size(), out.data(), (int32_t)out.size(), add_special,
                           parse_special);
    }
    out.resize(std::max(n, 0));
    return out;
}

std::string Vocabulary::detokenize(const Tokens & tokens, bool remove_special, bool special) const {
    std::string out(tokens.size() * 8 + 16, '\0');
    int n = llama_detokenize(vocab_, tokens.data(), (int32_t)tokens.size(), out.data(), (int32_t)out.size(),
                             remove_special, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_detokenize(vocab_, tokens.data(), (int32_t)tokens.size(), out.data(), (int32_t)out.size(),
                             remove_special, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

std::string Vocabulary::piece(Token token, bool special) const {
    if (token < 0 || token >= size()) {
        fail(ErrorKind::value, "token id %d is outside the vocabulary of %d", token, size());
    }
    std::string out(32, '\0');
    int n = llama_token_to_piece(vocab_, token, out.data(), (int32_t)out.size(), 0, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_token_to_piece(vocab_, token, out.data(), (int32_t)out.size(), 0, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

std::shared_ptr<const TokenPieces> Vocabulary::pieces() const {
    std::shared_ptr<const TokenPieces> found = std::atomic_load(&pieces_);
    if (found) return found;
    std::vector<std::string> pieces(size());
    std::vector<bool> is_end(size());
    for (Token t = 0; t < size(); ++t) pieces[t] = piece(t, /*special=*/true), is_end[t] = is_eog(t);
    found = std::make_shared<TokenPieces>(pieces, std::move(is_end));
    std::atomic_store(&pieces_, found);  // another thread may have made the same
    return found;
}

}  // namespace eaglecpp
