// SPDX-License-Identifier: MIT
// Detects use after fork(), which copies memory but only one thread. Helper threads of ggml (OpenMP's pool belongs to
// the thread that first computed) and what a GPU's driver holds do not exist in the child, and a call that waits for
// them waits for ever.
#pragma once

namespace eaglecpp {

// This thread is about to compute with helper threads: a child forked from it cannot compute any more.
void note_helper_threads();

// The process uses a device: a child forked from any of its threads cannot compute any more.
void note_device();

// True in such a child.
bool lost_by_fork();

// Error(unsupported) in such a child, naming what cannot be used and what to do.
void check_not_forked(const char * what);

}  // namespace eaglecpp
