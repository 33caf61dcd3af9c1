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

// Ids from here down are rows of images (engine/images.h); -1 is no token.
constexpr Token image_token_first = -2;

// for what knows tokens alone, such as a drafter's embedding: some token in the place of a row of an image
inline Token stand_in(Token token) {
    return token < 0 ? 0 : token;
}

// For what others point to, and for what undoes at its end what it did at its beginning.
struct Pinned {
    Pinned() = default;
    Pinned(const Pinned &) = delete;
    Pinned & operator=(const Pinned &) = delete;
};

// Borrowed memory.
struct ByteView {
    const uint8_t * data;
    size_t size;
};

inline double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace eaglecpp
