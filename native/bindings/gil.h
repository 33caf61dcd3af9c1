// SPDX-License-Identifier: MIT
#pragma once

#include <nanobind/nanobind.h>

#include "base/types.h"

namespace eaglecpp {

// Releases the GIL while it exists, like nanobind::gil_scoped_release, but safely at the end of the interpreter. Python
// then ends other threads that request the GIL by unwinding their stacks, and C++ ends the process. So the interpreter
// waits for the threads inside a GilRelease (wait_for_releases), and a thread that enters one later never leaves it.
class GilRelease : Pinned {
  public:
    GilRelease();
    ~GilRelease();

  private:
    PyThreadState * state_;
};

// Forgets all threads inside a GilRelease. For a forked process, which has no other threads.
void forget_releases();

// For atexit: waits until no other thread is inside a GilRelease. Afterwards no thread can leave one.
void wait_for_releases();

}  // namespace eaglecpp
