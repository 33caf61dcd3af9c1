// SPDX-License-Identifier: MIT
// Detects broken AMX support.
#pragma once

#include <functional>

namespace eaglecpp {

struct AmxState {
    bool claimed;  // ggml would store weights in AMX tiles
    bool works;    // tile instructions run without killing the process
};

// Returns the state of AMX on this machine. Some virtual machines report AMX but fault on the first tile instruction.
// So the first call multiplies a small matrix in a forked child. If forking is impossible, AMX counts as broken.
AmxState probe_amx();

#ifndef _WIN32
// Runs `call` in a forked child. Returns true if `call` returns true within n_seconds. Returns false if `call` crashes,
// throws or hangs.
bool succeeds_in_child(const std::function<bool()> & call, unsigned n_seconds);
#endif

}  // namespace eaglecpp
