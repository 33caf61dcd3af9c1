// SPDX-License-Identifier: MIT
#include "engine/models.h"

#include "base/error.h"
#include "engine/draft_place.h"
#include "engine/fit.h"

namespace eaglecpp {

static void check(const EngineOptions & options) {
    if (options.n_sequences < 1)
        fail(ErrorKind::value, "n_sequences: expected at least 1, found %d", options.n_sequences);
    if (options.n_draft_max < 0 || options.n_draft_max > 1024 || options.n_leaves_max < 1) {
        fail(ErrorKind::value, "n_draft_max %d and n_leaves_max %d: expected 0 to 1024 and at least 1",
             options.n_draft_max, options.n_leaves_max);
    }
    if (options.text_drafts != "auto" && options.text_drafts != "on" && options.text_drafts != "off") {
        fail(ErrorKind::value, "text_drafts: '%s' is not one of auto, on, off", options.text_drafts.c_str());
    }
    if (options.text_memory < 0 || options.text_memory > 1 << 20) {
        fail(ErrorKind::value, "text_memory: expected 0 to %d, found %d", 1 << 20, options.text_memory);
    }
}

Models open_models(const EngineOptions & options, const Target * weights) {
    check(options);
    Models out;
    if (!options.draft_path.empty()) out.draft_file = std::make_unique<DraftFile>(options.draft_path);
    out.drafts_text = options.text_drafts == "on" || (options.text_drafts == "auto" && out.draft_file);
    TargetOptions target_options = options;
    if (!out.draft_file && !out.drafts_text) target_options.n_draft_max = 0, target_options.n_leaves_max = 1;
    out.target =
        weights ? std::make_unique<Target>(target_options, *weights) : std::make_unique<Target>(target_options);
    if (out.draft_file) check_fit(*out.draft_file, *out.target);
    out.target->open_context(out.draft_file ? out.draft_file->spec().target_layers : std::vector<int32_t>{});
    if (!out.draft_file) return out;
    PlacedDrafter placed = place_drafter(options, *out.draft_file, *out.target);
    out.drafter = std::move(placed.drafter);
    out.why_placed = std::move(placed.why);
    return out;
}

}  // namespace eaglecpp
