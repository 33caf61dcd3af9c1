// SPDX-License-Identifier: MIT
// Small vocabulary types shared by every layer.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace eaglecpp {

using Token = int32_t;  // a target token id
using Pos = int32_t;    // a position in a sequence, from 0

using Tokens = std::vector<Token>;

inline double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace eaglecpp
