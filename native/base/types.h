// SPDX-License-Identifier: MIT
// Basic types shared by all layers.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace eaglecpp {

using Token = int32_t;  // a target token id
using Pos = int32_t;    // a position in a sequence, from 0

using Tokens = std::vector<Token>;

// Image rows have the ids image_token_first and below (engine/images.h). The id -1 is not a token.
constexpr Token image_token_first = -2;

// Returns a token, or an arbitrary token in place of an image row. Code that only knows tokens, such as a drafter's
// embedding, calls this function.
inline Token stand_in(Token token) {
    return token < 0 ? 0 : token;
}

// Non-copyable base: other objects hold its address, or its destructor undoes its constructor.
struct Pinned {
    Pinned() = default;
    Pinned(const Pinned &) = delete;
    Pinned & operator=(const Pinned &) = delete;
};

// Bytes that another object owns.
struct ByteView {
    const uint8_t * data;
    size_t size;
};

inline double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace eaglecpp
