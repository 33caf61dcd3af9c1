// SPDX-License-Identifier: MIT
// Heads for further tokens (multi-token prediction, MTP; llama.cpp's "nextn layers"), which read the model's states and
// draft: the last blocks of the model's own file, or a file of their own.
#pragma once

#include <string>
#include <vector>

#include "gguf/reader.h"
#include "target/model.h"

namespace eaglecpp {

constexpr const char * arch_assistant = "gemma4-assistant";

enum class Heads {
    none,
    in_model,   // the model itself is there, too
    alone,      // as llama.cpp's converter writes them with --mtp
    assistant,  // without keys and values of its own: it reads the target's (Gemma 4)
};

// which a file has
Heads heads_of(const GgufReader & file);

// whose heads can draft
std::vector<std::string> head_architectures();

// Error(unsupported) where a model's heads cannot draft, with the reason, which is also said where llama.cpp would end
// the process.
void check_heads(const TargetModel & model);

// Whether llama.cpp's graph of the heads leaves the states of output rows only.
bool gives_states_of_outputs(const TargetModel & model);

}  // namespace eaglecpp
