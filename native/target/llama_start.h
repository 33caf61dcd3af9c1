// SPDX-License-Identifier: MIT
// llama.cpp comes up in this process, and its log goes where ours goes.
#pragma once

namespace eaglecpp {

// Sends the log of llama.cpp and ggml to our sink.
void route_logs();

// Starts llama.cpp once per process: backends, log sink. Cheap afterwards.
void llama_start();

}  // namespace eaglecpp
