// SPDX-License-Identifier: MIT
// The target's tokens: text to ids and back. Safe for several threads at a time.
#pragma once

#include <llama.h>

#include <memory>
#include <optional>
#include <string>

#include "base/types.h"
#include "grammar/matcher.h"

namespace eaglecpp {

class SpecialTokens;

// Threads share it: what is made on demand is exchanged by atomic operations, which a copy would not use.
class Vocabulary : Pinned {
  public:
    explicit Vocabulary(const llama_model * model);

    const llama_vocab * get() const { return vocab_; }
    int size() const { return llama_vocab_n_tokens(vocab_); }

    // The ids that llama.cpp gives for the text, found in time that grows with its length, not with its square. Nothing
    // when there are more than n_max; that is seen before most of the work is done.
    // Error(value | out_of_memory) for a text that cannot be tokenised here
    std::optional<Tokens> tokenize(const std::string & text, bool add_special, bool parse_special, int n_max) const;

    std::string detokenize(const Tokens & tokens, bool remove_special, bool special) const;
    std::string piece(Token token, bool special) const;
    // for grammars; made when it is first asked for
    std::shared_ptr<const GrammarVocabulary> for_grammars() const;
    // that all of them are its tokens; Error(value)
    void check(const Tokens & tokens) const;
    bool is_eog(Token token) const { return llama_vocab_is_eog(vocab_, token); }

  private:
    std::shared_ptr<const SpecialTokens> specials() const;

    const llama_vocab * vocab_;
    mutable std::shared_ptr<const SpecialTokens> specials_;
    mutable std::shared_ptr<const GrammarVocabulary> for_grammars_;
};

}  // namespace eaglecpp
