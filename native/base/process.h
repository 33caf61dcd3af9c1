// SPDX-License-Identifier: MIT
// Detects use after fork(), which copies memory but only one thread. ggml's helper threads (OpenMP's pool belongs to
// the first thread that computed) and the state of a GPU's driver do not exist in the child. A call that waits for them
// never returns.
#pragma once

namespace eaglecpp {

// Call before this thread computes with helper threads: a child forked from it can no longer compute.
void note_helper_threads();

// Call when the process uses a device: a child forked from any thread can no longer compute.
void note_device();

// Returns true in a forked child that cannot compute.
bool lost_by_fork();

// Raises Error(unsupported) in a forked child that cannot compute. `what` names the failed action.
void check_not_forked(const char * what);

}  // namespace eaglecpp
