// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <utility>

namespace eaglecpp {

// The lower median of the first n values, 1 <= n <= N.
template <size_t N>
double lower_median(std::array<double, N> values, int n) {
    for (int i = 1; i < n; ++i) {
        for (int j = i; j > 0 && values[j] < values[j - 1]; --j) std::swap(values[j], values[j - 1]);
    }
    return values[(n - 1) / 2];
}

}  // namespace eaglecpp
