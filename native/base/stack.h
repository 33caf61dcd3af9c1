// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>

namespace eaglecpp {

// Runs a function on a stack of n bytes, in a separate thread, and rethrows the function's exception. Unused pages of
// the stack take no memory. Returns false if the system cannot create such a thread.
bool run_on_stack(size_t n_bytes, const std::function<void()> & call);

}  // namespace eaglecpp
