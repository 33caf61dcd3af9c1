// SPDX-License-Identifier: MIT
// What the target thinks of a text.
#pragma once

#include <vector>

#include "target/target.h"

namespace eaglecpp {

// The natural logarithm of the probability of each token but the first, after those before it. Runs in a context of its
// own over this target's weights, as long as one conversation's, which is there while the text is scored: conversations
// keep their cells. Error(context_full | value | out_of_memory | broken)
std::vector<float> score(const Target & target, const Tokens & tokens);

}  // namespace eaglecpp
