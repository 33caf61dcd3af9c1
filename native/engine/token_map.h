// SPDX-License-Identifier: MIT
// Which token of a small model stands for which of the target. Both must have been made with one vocabulary; what they
// may differ in are special tokens, which fine-tunes rename, and padding at the end.
#pragma once

#include <vector>

#include "base/types.h"
#include "target/model.h"

namespace eaglecpp {

struct TokenMap {
    // [n_vocab of the small model] its tokens as the target's, -1 = the target has no such token. Empty: the same ids.
    std::vector<Token> to_target;
    // [n_vocab of the target] the target's tokens as the small model's; its end-of-text token for those it has not.
    // Empty: the same ids.
    std::vector<Token> to_draft;

    Token for_draft(Token token) const { return to_draft.empty() ? stand_in(token) : to_draft[stand_in(token)]; }
};

// Error(mismatch) naming both files, how many tokens differ and the first of them
TokenMap match_tokens(const TargetModel & draft, const TargetModel & target);

}  // namespace eaglecpp
