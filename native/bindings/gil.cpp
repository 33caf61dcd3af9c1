// SPDX-License-Identifier: MIT
#include "bindings/gil.h"

#include <chrono>
#include <thread>

namespace eaglecpp {

// Number of threads inside a GilRelease. Read and written only with the GIL.
static int n_released = 0;
static bool is_ending = false;
static std::thread::id ending_thread;

static void pause() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

GilRelease::GilRelease() {
    const bool is_late = is_ending && std::this_thread::get_id() != ending_thread;
    n_released += !is_late;
    state_ = PyEval_SaveThread();
    while (is_late) pause();
}

GilRelease::~GilRelease() {
    PyEval_RestoreThread(state_);
    --n_released;
}

void forget_releases() {
    n_released = 0;
}

void wait_for_releases() {
    is_ending = true;
    ending_thread = std::this_thread::get_id();
    while (n_released > 0) {
        PyThreadState * state = PyEval_SaveThread();
        pause();
        PyEval_RestoreThread(state);
    }
}

}  // namespace eaglecpp
