// SPDX-License-Identifier: MIT
// Keeps GGML_ASSERT and GGML_ABORT from ending the process. While a guard is active, an assertion that fires on the
// guarding thread is thrown as Error(broken) instead; whoever catches it must give up the objects in use. Assertions
// on ggml's worker threads cannot be unwound and still abort, so known causes are checked before the call as well.
#pragma once

#include <utility>

namespace eaglecpp {

class AbortGuard {
  public:
    AbortGuard();
    ~AbortGuard();

    AbortGuard(const AbortGuard &) = delete;
    AbortGuard & operator=(const AbortGuard &) = delete;
};

template <typename F>
auto guarded(F && f) -> decltype(f()) {
    AbortGuard guard;
    return std::forward<F>(f)();
}

}  // namespace eaglecpp
