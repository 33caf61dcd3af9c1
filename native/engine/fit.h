// SPDX-License-Identifier: MIT
// Does this drafter belong to this target? Asked once at load; a wrong pair would decode correctly but slowly, and
// nobody would know why.
#pragma once

#include "gguf/draft_file.h"
#include "target/target.h"

namespace eaglecpp {

// Error(mismatch) naming both sides and everything that differs: hidden size, layers, vocabulary size, token texts.
void check_fit(const DraftFile & draft, const Target & target);

}  // namespace eaglecpp
