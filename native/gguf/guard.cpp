// SPDX-License-Identifier: MIT
#include "gguf/guard.h"

#include <ggml.h>

#include <cstdio>
#include <mutex>

#include "base/error.h"

#ifndef _WIN32
#include <unwind.h>

#include <cstdint>
#endif

namespace eaglecpp {

namespace {
thread_local const AbortGuard * innermost = nullptr;
ggml_abort_callback_t previous = nullptr;

// Returns true if exceptions can unwind every stack frame between the caller and the guard. Stacks grow downwards on
// all of ggml's platforms.
#ifdef _WIN32
bool can_unwind_to(const AbortGuard *) {
    return true;  // all functions have unwind tables on Windows
}
#else
bool can_unwind_to(const AbortGuard * guard) {
    struct Walk {
        uintptr_t guard;
        bool is_reached;
    } walk{(uintptr_t)guard, false};
    _Unwind_Backtrace(
        [](_Unwind_Context * frame, void * data) {
            auto & w = *(Walk *)data;
            w.is_reached = _Unwind_GetCFA(frame) > w.guard;
            return w.is_reached ? _URC_NORMAL_STOP : _URC_NO_REASON;
        },
        &walk);
    return walk.is_reached;
}
#endif

// ggml calls abort() when this function returns, so the function must throw.
void on_abort(const char * message) {
    if (innermost) {
        if (can_unwind_to(innermost)) {
            throw Error(ErrorKind::broken, std::string("an internal assertion of llama.cpp failed: ") + message +
                                               "; open the engine again, and please report this with the model's name");
        }
        std::fprintf(stderr,
                     "eaglecpp: ggml was compiled without unwind tables, so a failed assertion ends the process; "
                     "compile llama-cpp-python with CMAKE_ARGS=-DCMAKE_C_FLAGS=-funwind-tables\n");
    }
    if (previous) {
        previous(message);
    } else {
        std::fprintf(stderr, "%s\n", message);
    }
}
}  // namespace

AbortGuard::AbortGuard() : outer_(innermost) {
    static std::once_flag once;
    std::call_once(once, [] { previous = ggml_set_abort_callback(on_abort); });
    innermost = this;
}

AbortGuard::~AbortGuard() {
    innermost = outer_;
}

}  // namespace eaglecpp
