// SPDX-License-Identifier: MIT
// Keeps GGML_ASSERT and GGML_ABORT from ending the process. While a guard is active, an assertion that fails on the
// guard's thread throws Error(broken). The code that catches this error must discard the objects in use.
//
// The exception passes through C functions of ggml, which have nothing to clean up. On x86-64, 64-bit ARM, macOS and
// Windows, compilers write unwind tables for C too. On other platforms, compile llama.cpp with -funwind-tables. Never
// use -fexceptions: with it, OpenMP regions of C code end the process. The guard checks the tables before it throws.
// The process ends with the assertion's text, as without a guard, if a frame on the stack has no table or if a worker
// thread of ggml fails. So callers also check known causes before they call ggml.
#pragma once

#include <utility>

#include "base/types.h"

namespace eaglecpp {

class AbortGuard : Pinned {
  public:
    AbortGuard();
    ~AbortGuard();

  private:
    const AbortGuard * outer_;
};

template <typename F>
auto guarded(F && f) -> decltype(f()) {
    AbortGuard guard;
    return std::forward<F>(f)();
}

}  // namespace eaglecpp
