// SPDX-License-Identifier: MIT
#include "base/error.h"

#include <cstdarg>
#include <cstdio>
#include <vector>

namespace eaglecpp {

static std::string vstrf(const char * fmt, va_list args) {
    va_list again;
    va_copy(again, args);
    const int n = std::vsnprintf(nullptr, 0, fmt, args);
    std::vector<char> buf(n < 0 ? 1 : n + 1);
    std::vsnprintf(buf.data(), buf.size(), fmt, again);
    va_end(again);
    return std::string(buf.data());
}

std::string strf(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vstrf(fmt, args);
    va_end(args);
    return text;
}

void fail(ErrorKind kind, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vstrf(fmt, args);
    va_end(args);
    throw Error(kind, text);
}

void fail_if(bool is_wrong, ErrorKind kind, const char * fmt, ...) {
    if (!is_wrong) return;
    va_list args;
    va_start(args, fmt);
    std::string text = vstrf(fmt, args);
    va_end(args);
    throw Error(kind, text);
}

}  // namespace eaglecpp
