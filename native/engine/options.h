// SPDX-License-Identifier: MIT
// What a caller may choose, as plain structs with defaults; mirrored by eaglecpp/options.py.
#pragma once

#include <string>

#include "algo/strategy.h"
#include "target/sampler.h"
#include "target/target.h"

namespace eaglecpp {

struct EngineOptions : TargetOptions {
    std::string draft_path;  // "" = no drafter
    std::string draft_device = "auto";
    std::string draft_type_kv = "f16";
};

struct GenerateParams {
    SamplingParams sampling;
    Strategy strategy;
    int max_tokens = -1;  // < 0: until the context is full
    int n_probs = 0;      // most likely tokens reported per emitted token
    bool ignore_eos = false;
};

}  // namespace eaglecpp
