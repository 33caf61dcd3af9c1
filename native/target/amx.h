// SPDX-License-Identifier: MIT
// Does AMX work here?
#pragma once

#include <functional>

namespace eaglecpp {

struct AmxState {
    bool claimed;  // ggml would place weights in AMX tiles
    bool works;    // and the first tile instruction does not kill the process
};

// Some virtual machines announce AMX and then fault on the first tile instruction. Multiplies a small matrix in a
// forked child, once per process. Where forking is not possible an announced AMX counts as broken.
AmxState probe_amx();

#ifndef _WIN32
// Whether the call returns true in a forked child. It may also crash there, throw or hang.
bool succeeds_in_child(const std::function<bool()> & call, unsigned n_seconds);
#endif

}  // namespace eaglecpp
