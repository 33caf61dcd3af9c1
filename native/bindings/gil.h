// SPDX-License-Identifier: MIT
#pragma once

#include <nanobind/nanobind.h>

#include "base/types.h"

namespace eaglecpp {

// Releases the GIL while the object exists, like nanobind::gil_scoped_release. It is also safe at the interpreter's
// exit. At exit, Python unwinds the stacks of other threads that request the GIL, and C++ then ends the process. So the
// interpreter first waits for the threads inside a GilRelease (wait_for_releases). A thread that enters a GilRelease
// later never leaves it.
class GilRelease : Pinned {
  public:
    GilRelease();
    ~GilRelease();

  private:
    PyThreadState * state_;
};

// Forgets all threads inside a GilRelease. Call this function in a forked process, which has no other threads.
void forget_releases();

// Waits until no other thread is inside a GilRelease. From then on no thread can leave a GilRelease. Registered with
// atexit.
void wait_for_releases();

}  // namespace eaglecpp
