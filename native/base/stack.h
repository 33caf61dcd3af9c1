// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>

namespace eaglecpp {

// Runs a function on a stack of n bytes, in a thread of its own, and rethrows its exception. Unused pages of the stack
// cost nothing. Returns false if the system gives no such thread.
bool run_on_stack(size_t n_bytes, const std::function<void()> & call);

}  // namespace eaglecpp
