// SPDX-License-Identifier: MIT
// What an engine is opened with: the target and, if there is one, the drafter that belongs to it.
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
    std::unique_ptr<DraftFile> draft_file;  // of an EAGLE drafter
    std::unique_ptr<Target> target;
    std::unique_ptr<Drafter> drafter;
    DraftTraits draft_traits;   // the drafter's
    std::string why_placed;     // why the drafter is not where it would best be; "" = it is, or there is none
    bool drafts_text = false;   // rounds may draft from the text itself
    bool drafts_forms = false;  // and what a grammar forces
    int draft_window = 0;       // of requests that name none

    bool can_draft() const { return drafter || drafts_text; }
};

// Loaded, found to fit each other, ready to run. Error(not_found | gguf | mismatch | unsupported | out_of_memory |
// value)
Models open_models(const EngineOptions & options);

// Tokens of a drafter with n of them whose texts are others in the target: how many, and the first; "" = none.
// `is_compared`: also asked of tokens that one of both lacks.
std::string token_differences(const Vocabulary & target, int n, const std::function<const char *(Token)> & text,
                              const std::function<bool(Token)> & is_compared);

}  // namespace eaglecpp
