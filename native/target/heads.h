// SPDX-License-Identifier: MIT
// Multi-token-prediction heads (MTP; "nextn layers" in llama.cpp). The heads read the model's states and draft tokens.
// They are the last blocks of the model's file, or they are in a separate file.
#pragma once

#include <string>
#include <vector>

#include "gguf/reader.h"
#include "target/model.h"

namespace eaglecpp {

constexpr const char * arch_assistant = "gemma4-assistant";

enum class Heads {
    none,
    in_model,   // in the model's file
    alone,      // in a separate file, as written by llama.cpp's converter with --mtp
    assistant,  // reads the target's keys and values and stores none of its own (Gemma 4)
};

// Returns the kind of heads in a file.
Heads heads_of(const GgufReader & file);

// Returns the architectures with heads that can draft.
std::vector<std::string> head_architectures();

// Raises Error(unsupported), with the reason, if a model's heads cannot draft. Also rejects heads with which llama.cpp
// would end the process.
void check_heads(const TargetModel & model);

// Returns true if llama.cpp's graph of the heads returns only the states of output rows.
bool gives_states_of_outputs(const TargetModel & model);

}  // namespace eaglecpp
