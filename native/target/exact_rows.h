// SPDX-License-Identifier: MIT
// Measures the numbers of rows at which a batch of this target, with this context, gives every row the bits that it has
// in a batch of one row. Runs the same tokens at the same positions row by row and as batches, and compares the logits
// bit by bit. Only a test like this covers all kernels that really run, whatever the types, shapes, expert routers and
// devices.
#pragma once

#include <functional>

#include "algo/costs.h"
#include "target/target.h"

namespace eaglecpp {

struct ExactRows {
    RowCounts counts;
    int n_decodes = 0;
    double ms = 0.0;
};

// Runs a batch of the target; `is_prompt` as for Target::decode. This batch is the `n_alike`-th consecutive one with
// its number of rows, counted from 1.
using Decode = std::function<void(TargetBatch & batch, bool is_prompt, int n_alike)>;

// Measures batches of up to n_rows_max rows, and one batch of n_batch_max rows, comparing only its first rows. The
// conversation must be empty, and is empty afterwards.
ExactRows measure_exact_rows(Target & target, const SeqRange & range, int n_rows_max, int n_batch_max,
                             const Decode & decode);

}  // namespace eaglecpp
