// SPDX-License-Identifier: MIT
// Measures which batches of this target are exact with this context: numbers of rows at which every row has the same
// bits as in a batch of one row. Runs the same tokens at the same positions row by row and as batches, and compares the
// logits bit by bit. Only such a test covers all kernels that really run, for all types, shapes, expert routers and
// devices.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "algo/costs.h"
#include "target/target.h"

namespace eaglecpp {

// State of a measurement, which can stop after any batch and continue later, also in another process.
struct ExactRows {
    RowCounts counts{/*is_complete=*/false};
    std::vector<uint64_t> alone;  // hash of the logits of each row that ran alone
    int n_decodes = 0;
    double ms = 0.0;
};

// Runs a batch of the target. `is_prompt` has the meaning of Target::decode. The batch is number `n_alike` (from 1) of
// the consecutive batches with its number of rows. Returns false, without running the batch, to stop the measurement.
using Decode = std::function<bool(TargetBatch & batch, bool is_prompt, int n_alike)>;

// Measures the sizes that `rows` lacks: batches of up to n_rows_max rows, and one batch of n_batch_max rows. Compares
// only the first rows of that batch. Small batches come first, because RowCounts trusts only sizes between measured
// sizes. The conversation must be empty before the call, and is empty after the call.
void measure_exact_rows(Target & target, const SeqRange & range, int n_rows_max, int n_batch_max, const Decode & decode,
                        ExactRows & rows);

}  // namespace eaglecpp
