// SPDX-License-Identifier: MIT
// Starts llama.cpp in this process and sends its log where ours goes.
#pragma once

namespace eaglecpp {

// Sends the log of llama.cpp and ggml to our sink.
void route_logs();

// Starts llama.cpp once per process: backends, log sink. Cheap afterwards.
void llama_start();

}  // namespace eaglecpp
