// SPDX-License-Identifier: MIT
// Detects use after fork(). A fork copies memory but only one thread, so ggml's helper threads and the state of a GPU
// driver do not exist in the child. A call in the child that waits for them never returns. OpenMP's pool of threads
// belongs to the first thread that computed.
#pragma once

namespace eaglecpp {

// Records that this thread computes with helper threads. A child forked from this thread cannot compute. Call this
// function before the computation.
void note_helper_threads();

// Records that the process uses a device. A child forked from any thread cannot compute. Call this function before the
// first use of the device.
void note_device();

// Returns true if this process is a forked child that cannot compute.
bool lost_by_fork();

// Raises Error(unsupported) if this process is a forked child that cannot compute. `what` is the failed action, as the
// start of the error message.
void check_not_forked(const char * what);

}  // namespace eaglecpp
