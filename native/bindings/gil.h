// SPDX-License-Identifier: MIT
#pragma once

#include <nanobind/nanobind.h>

#include "base/types.h"

namespace eaglecpp {

// While it lives, other threads may run Python; as nanobind::gil_scoped_release, but for the end of the interpreter.
// Python ends other threads then where they ask for the GIL, by unwinding their stacks, which C++ answers by ending the
// process. So the interpreter's end waits for the threads that are in here (wait_for_releases), and a thread that comes
// later stays in here for ever.
class GilRelease : Pinned {
  public:
    GilRelease();
    ~GilRelease();

  private:
    PyThreadState * state_;
};

// For a process that was forked, which has none of the other threads.
void forget_releases();

// For atexit: no other thread is in a GilRelease afterwards, nor gets out of one.
void wait_for_releases();

}  // namespace eaglecpp
