// SPDX-License-Identifier: MIT
// Options of an engine and of a generation, as plain structs with defaults. The Python classes in eaglecpp/options/
// have the same fields.
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
    int draft_window = 0;  // number of last tokens that the drafter attends to; 0 = the drafter file's setting
    // When to draft by copying from the text: "auto" = if there is a drafter, "on" = also without a drafter, "off" =
    // never. "off" also turns off drafts of tokens that a grammar forces.
    std::string text_drafts = "auto";
    std::string exact = "auto";  // run only batches whose rows have the bits of single rows: "auto" | "on" | "off"
};

struct GenerateParams {
    SamplingParams sampling;
    Strategy strategy;
    int max_tokens = -1;  // < 0: generate until the context is full
    int n_probs = 0;      // number of most likely tokens reported per emitted token
    bool ignore_eos = false;
    bool cache_prompt = true;  // reuse the cached prefix of the prompt
    std::string exact;         // overrides EngineOptions::exact; "" = no override
    int draft_window = -1;     // overrides EngineOptions::draft_window; < 0 = no override
    bool log_plan = false;     // log each round's decision as a line
    // Synthetic acceptance, for tests and benchmarks only. synth_rates[d - 1] is the probability that the first d
    // drafts of a chain are all accepted, whatever the target samples. All deeper drafts are rejected. The emitted text
    // differs from the target's text.
    std::vector<double> synth_rates;
};

}  // namespace eaglecpp
