// SPDX-License-Identifier: MIT
// How probable the target finds a text.
#pragma once

#include <vector>

#include "target/target.h"

namespace eaglecpp {

// The natural logarithm of the probability of each token but the first, given those before it. Runs in a temporary
// context over this target's weights, as long as one conversation's, so open conversations keep their cells.
// Error(context_full | value | out_of_memory | broken)
std::vector<float> score(const Target & target, const Tokens & tokens);

}  // namespace eaglecpp
