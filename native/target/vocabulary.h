// SPDX-License-Identifier: MIT
// The target's tokens: text to ids and back.
#pragma once

#include <llama.h>

#include <memory>
#include <string>
#include <vector>

#include "algo/token_pieces.h"
#include "base/types.h"

namespace eaglecpp {

class Vocabulary {
  public:
    explicit Vocabulary(const llama_model * model) : vocab_(llama_model_get_vocab(model)) {}

    const llama_vocab * get() const { return vocab_; }
    int size() const { return llama_vocab_n_tokens(vocab_); }

    std::vector<Token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string detokenize(const Tokens & tokens, bool remove_special, bool special) const;
    std::string piece(Token token, bool special) const;
    // of all tokens, for grammars; made when they are first asked for
    std::shared_ptr<const TokenPieces> pieces() const;
    bool is_eog(Token token) const { return llama_vocab_is_eog(vocab_, token); }

  private:
    const llama_vocab * vocab_;
    mutable std::shared_ptr<const TokenPieces> pieces_;
};

}  // namespace eaglecpp
