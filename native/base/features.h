// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace eaglecpp {

// Target features of consecutive rows: one pointer per aux layer to [n_rows, n_embd_target] f32, row after row.
// Borrowed memory; the owner says how long it stays valid.
struct FeatureRows {
    std::vector<const float *> layer;
    int n_rows = 0;

    // rows from `row` on
    FeatureRows from(int row, int n_embd_target) const {
        FeatureRows out = *this;
        for (auto & p : out.layer) p += (size_t)row * n_embd_target;
        out.n_rows -= row;
        return out;
    }
};

}  // namespace eaglecpp
