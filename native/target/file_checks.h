// SPDX-License-Identifier: MIT
// What a target's file must not say: values that llama.cpp accepts when it loads and that end the process, hang or
// write out of bounds once ggml computes with them on a worker thread, where no assertion can be caught.
#pragma once

#include <llama.h>

#include "gguf/reader.h"

namespace eaglecpp {

// of every file of a model, before it is loaded; `header` is the first, the only one with settings. Error(gguf)
void check_weights(const GgufReader & header, const GgufReader & file);

// of `header` and what llama.cpp made of it; Error(gguf)
void check_settings(const GgufReader & header, const llama_model * model);

}  // namespace eaglecpp
