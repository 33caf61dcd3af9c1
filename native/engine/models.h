// SPDX-License-Identifier: MIT
// What an engine is opened with: the target and, if there is one, the drafter that belongs to it.
#pragma once

#include <memory>
#include <string>

#include "draft/drafter.h"
#include "engine/options.h"
#include "gguf/draft_file.h"
#include "target/target.h"

namespace eaglecpp {

struct Models {
    std::unique_ptr<DraftFile> draft_file;  // of an EAGLE drafter
    std::unique_ptr<Target> target;
    std::unique_ptr<Drafter> drafter;
    DraftTraits draft_traits;  // the drafter's
    std::string why_placed;    // why the drafter is not where it would best be; "" = it is, or there is none
    bool drafts_text = false;  // rounds may draft from the text itself

    bool can_draft() const { return drafter || drafts_text; }
};

// Loaded, found to fit each other, ready to run. weights: a target of the same file, whose weights are used in place of
// loading them again. Error(not_found | gguf | mismatch | unsupported | out_of_memory | cancelled | value)
Models open_models(const EngineOptions & options, const Target * weights = nullptr);

}  // namespace eaglecpp
