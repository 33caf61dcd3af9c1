// SPDX-License-Identifier: MIT
#include "gguf/guard.h"

#include <ggml.h>

#include <cstdio>
#include <mutex>

#include "base/error.h"

namespace eaglecpp {

namespace {
thread_local int n_guards = 0;
ggml_abort_callback_t previous = nullptr;

// ggml calls abort() as soon as this returns; throwing is the only way out.
void on_abort(const char * message) {
    if (n_guards > 0) {
        throw Error(ErrorKind::broken, std::string("an internal assertion failed: ") + message +
                                           "; open the engine anew, and please report this with the model's name");
    }
    if (previous) {
        previous(message);
    } else {
        std::fprintf(stderr, "%s\n", message);
    }
}
}  // namespace

AbortGuard::AbortGuard() {
    static std::once_flag once;
    std::call_once(once, [] { previous = ggml_set_abort_callback(on_abort); });
    ++n_guards;
}

AbortGuard::~AbortGuard() {
    --n_guards;
}

}  // namespace eaglecpp
