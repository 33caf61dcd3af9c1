// SPDX-License-Identifier: MIT
// What a caller may choose, as plain structs with defaults; mirrored by eaglecpp/options/.
#pragma once

#include <string>
#include <vector>

#include "algo/planner.h"
#include "target/sampler.h"
#include "target/target.h"

namespace eaglecpp {

struct EngineOptions : TargetOptions {
    std::string draft_path;  // "" = no drafter
    std::string draft_device = "auto";
    std::string draft_type_kv = "f16";
    int draft_window = 0;  // the last tokens that the drafter attends to; 0 = as its file says
    // from the text itself: "auto" = beside a drafter, "on" = without one, too, "off" = nor what a grammar forces
    std::string text_drafts = "auto";
    std::string exact = "auto";  // plan only batches whose rows hold the bits of single rows: "auto" | "on" | "off"
};

struct GenerateParams {
    SamplingParams sampling;
    Strategy strategy;
    int max_tokens = -1;  // < 0: until the context is full
    int n_probs = 0;      // most likely tokens reported per emitted token
    bool ignore_eos = false;
    bool cache_prompt = true;  // go on from what the caches hold of the prompt
    std::string exact;         // as EngineOptions::exact, "" = as the engine was opened
    int draft_window = -1;     // as EngineOptions::draft_window, < 0 = as the engine was opened
    bool log_plan = false;     // keep every round's decision as a line
    // Tests and benchmarks only, [d - 1]: chance that the first d drafts of a chain are all accepted, whatever the
    // target samples; deeper ones never are. The text is not the target's.
    std::vector<double> synth_rates;
};

}  // namespace eaglecpp
