// SPDX-License-Identifier: MIT
#include "kernels/grids.h"

#include <ggml.h>

#include <algorithm>
#include <vector>

#include "ggml_hook/hook_state.h"

namespace eaglecpp::kernels {

namespace {
// What ggml makes of each index in a block whose other bytes are 0 but for a scale of 1: `unit` times a size. The bits
// of an index above the eighth lie at `high`.
template <int n>
bool read_grid(ggml_type type, int high, int n_weights, float unit, const std::vector<float> & sizes,
               uint32_t (&grid)[n]) {
    const ggml_type_traits & traits = *ggml_get_type_traits(type);
    std::vector<uint8_t> block(traits.type_size, 0);
    std::vector<float> weights(traits.blck_size);
    block[1] = 0x3C;
    for (int i = 0; i < n; ++i) {
        block[2] = (uint8_t)i, block[high] = (uint8_t)(i >> 8);
        traits.to_float(block.data(), weights.data(), traits.blck_size);
        grid[i] = 0;
        for (int k = 0; k < n_weights; ++k) {
            const auto size = std::find(sizes.begin(), sizes.end(), weights[k] / unit);
            if (size == sizes.end()) return false;
            grid[i] |= (uint32_t)(size - sizes.begin()) << (8 * (k % 4) + 4 * (k / 4));
        }
    }
    return true;
}
}  // namespace

bool read_grids() {
    const std::vector<float> of_iq2 = {8, 25, 43}, of_xxs = {4, 12, 20, 28, 36, 44, 52, 62},
                             of_s = {1, 3, 5, 7, 9, 11, 13, 15};
    return read_grid(GGML_TYPE_IQ2_XXS, 3, 8, 0.125f, of_iq2, grids.iq2_xxs) &&
           read_grid(GGML_TYPE_IQ2_XS, 3, 8, 0.125f, of_iq2, grids.iq2_xs) &&
           read_grid(GGML_TYPE_IQ2_S, 66, 8, 0.125f, of_iq2, grids.iq2_s) &&
           read_grid(GGML_TYPE_IQ3_XXS, 3, 4, 0.25f, of_xxs, grids.iq3_xxs) &&
           read_grid(GGML_TYPE_IQ3_S, 66, 4, 1.0f, of_s, grids.iq3_s);
}

}  // namespace eaglecpp::kernels
