// SPDX-License-Identifier: MIT
// The models of an engine: the target and, optionally, its drafter.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "draft/draft_file.h"
#include "draft/drafter.h"
#include "engine/options.h"
#include "target/target.h"

namespace eaglecpp {

struct Models {
    std::unique_ptr<DraftFile> draft_file;  // only set for drafters that read hidden states
    std::unique_ptr<Target> target;
    std::unique_ptr<Drafter> drafter;
    DraftTraits draft_traits;
    std::string why_placed;     // why the drafter is not on its best device, or "" (also without a drafter)
    bool drafts_text = false;   // rounds may draft by copying from the text
    bool drafts_forms = false;  // rounds may draft tokens that a grammar forces

    // Returns true if rounds may draft, with the drafter or by copying from the text.
    bool can_draft() const { return drafter || drafts_text; }
    // Returns true if the only drafts are tokens that a grammar forces.
    bool drafts_forms_alone() const { return drafts_forms && !can_draft(); }
};

// Loads the models and checks that target and drafter match. Error(not_found | gguf | mismatch | unsupported |
// out_of_memory | value)
Models open_models(const EngineOptions & options);

// Describes how a drafter's vocabulary of `n` tokens differs from the target's: the number of tokens with different
// texts, and the first of these tokens. Returns "" if all texts are equal. is_compared(token) returns false for tokens
// to ignore. It is also called for tokens that only one of the two vocabularies has.
std::string token_differences(const Vocabulary & target, int n, const std::function<const char *(Token)> & text,
                              const std::function<bool(Token)> & is_compared);

}  // namespace eaglecpp
