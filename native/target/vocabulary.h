// SPDX-License-Identifier: MIT
// Converts texts to token ids and back, with the target's vocabulary. Thread-safe.
#pragma once

#include <llama.h>

#include <memory>
#include <optional>
#include <string>

#include "base/types.h"
#include "grammar/matcher.h"

namespace eaglecpp {

class SpecialTokens;

// Not copyable, because threads share a vocabulary. Some members are made at their first use and exchanged atomically,
// which a copy would not do.
class Vocabulary : Pinned {
  public:
    explicit Vocabulary(const llama_model * model);

    const llama_vocab * get() const { return vocab_; }
    int size() const { return llama_vocab_n_tokens(vocab_); }

    // Returns the ids that llama.cpp gives for the text. The time is linear in the text's length. If there are more
    // than n_max ids, returns nullopt without most of the work. Error(value | out_of_memory) for a text that cannot be
    // tokenised.
    std::optional<Tokens> tokenize(const std::string & text, bool add_special, bool parse_special, int n_max) const;

    std::string detokenize(const Tokens & tokens, bool remove_special, bool special) const;
    std::string piece(Token token, bool special) const;
    // Returns the vocabulary for grammars. The first call makes it.
    std::shared_ptr<const GrammarVocabulary> for_grammars() const;
    // Raises Error(value) if any id is outside the vocabulary.
    void check(const Tokens & tokens) const;
    bool is_eog(Token token) const { return llama_vocab_is_eog(vocab_, token); }

  private:
    std::shared_ptr<const SpecialTokens> specials() const;

    const llama_vocab * vocab_;
    mutable std::shared_ptr<const SpecialTokens> specials_;
    mutable std::shared_ptr<const GrammarVocabulary> for_grammars_;
};

}  // namespace eaglecpp
