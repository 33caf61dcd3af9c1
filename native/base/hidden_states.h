// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace eaglecpp {

// Hidden states of consecutive rows of the target. Each extracted layer has a pointer to [n_rows, n_embd_target] f32,
// row by row. The memory is borrowed; its owner documents how long it is valid.
struct HiddenStates {
    std::vector<const float *> layer;
    int n_rows = 0;

    // Returns the rows from `row` on.
    HiddenStates from(int row, int n_embd_target) const {
        HiddenStates out = *this;
        for (auto & p : out.layer) p += (size_t)row * n_embd_target;
        out.n_rows -= row;
        return out;
    }
};

}  // namespace eaglecpp
