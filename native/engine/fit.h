// SPDX-License-Identifier: MIT
// Checks, once at load, that a drafter belongs to its target. A wrong pair would decode correctly but slowly, with
// nothing to show why.
#pragma once

#include "gguf/draft_file.h"
#include "target/target.h"

namespace eaglecpp {

// Error(mismatch) naming both sides and everything that differs: hidden size, layers, vocabulary size, token texts.
void check_fit(const DraftFile & draft, const Target & target);

}  // namespace eaglecpp
