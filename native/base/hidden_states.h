// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace eaglecpp {

// Hidden states of consecutive rows of the target. Each extracted layer has a pointer to f32 values [n_rows,
// n_embd_target], row by row. The memory is borrowed. Its owner documents how long the memory is valid.
struct HiddenStates {
    std::vector<const float *> layer;
    int n_rows = 0;

    // Returns the hidden states without the rows before `row`.
    HiddenStates from(int row, int n_embd_target) const {
        HiddenStates out = *this;
        for (auto & p : out.layer) p += (size_t)row * n_embd_target;
        out.n_rows -= row;
        return out;
    }
};

}  // namespace eaglecpp
