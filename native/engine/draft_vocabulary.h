// SPDX-License-Identifier: MIT
// The tokens that a drafter run by llama.cpp can propose. Such a drafter has the target's whole vocabulary, and the
// product with its head often takes longer than the rest of a draft step (Gemma 3 270M: 168 of 268 million weights). So
// our kernels compute only likely tokens: the first tokens of the vocabulary, which tokenizers learn first because they
// are frequent, and the groups of tokens that the text contained recently. A token that cannot be drafted costs speed,
// but does not change the text.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "kernels/product_ops.h"

struct llama_vocab;

namespace eaglecpp {

class DraftVocabulary {
  public:
    DraftVocabulary() = default;  // all tokens
    explicit DraftVocabulary(const llama_vocab * vocab);

    // Adds a token of the text.
    void add(Token token);
    // Returns the groups of tokens in the vocabulary, or null for all tokens. The object is valid as long as this one.
    const kernels::ChosenGroups * chosen();

  private:
    enum State : uint8_t { absent, earlier, recent, always };

    std::vector<State> states_;  // of each group; empty = all tokens
    int n_recent_ = 0;           // number of groups in state `recent`
    bool has_changed_ = false;
    kernels::ChosenGroups chosen_;
};

}  // namespace eaglecpp
