// SPDX-License-Identifier: MIT
// Measures for which numbers of rows a batch of this target, with this context, gives every row the bits it has alone:
// runs the same tokens at the same positions once row by row and once as batches, and compares the logits bit for bit.
// Only such a test covers every kernel that really runs, whatever the types, shapes, expert routers and devices are.
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

// Runs a batch of the target; `is_prompt` as for Target::decode. It is the `n_alike`-th in a row
// with as many rows, from 1.
using Decode = std::function<void(TargetBatch & batch, bool is_prompt, int n_alike)>;

// For batches of up to n_rows_max rows, and for one of n_batch_max rows, of which the first are compared. The
// conversation must be empty, and is empty afterwards.
ExactRows measure_exact_rows(Target & target, const SeqRange & range, int n_rows_max, int n_batch_max,
                             const Decode & decode);

}  // namespace eaglecpp
