// SPDX-License-Identifier: MIT
// Kinds of errors, one per cause. The bindings map each kind to the class of the same name in `eaglecpp.errors`. The
// text of what() says what was expected, what was found, where, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace eaglecpp {

enum class ErrorKind {
    gguf,           // the contents of a file are invalid
    mismatch,       // drafter and target do not match
    unsupported,    // the target, option or backend is not supported
    context_full,   // the tokens do not fit into the context
    out_of_memory,  // memory of the host or of a device is short
    busy,           // two threads use an engine at once
    broken,         // an assertion of llama.cpp or ggml failed; the engine must be opened again
    grammar,        // a grammar does not parse or allows no token
    not_found,      // the file does not exist
    value,          // invalid call: Python's ValueError
};

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string & what) : std::runtime_error(what), kind(kind) {}

    ErrorKind kind;
};

#if defined(__GNUC__)
#define EAGLECPP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define EAGLECPP_PRINTF(fmt, args)
#endif

// Formats a text like printf and returns it.
std::string strf(const char * fmt, ...) EAGLECPP_PRINTF(1, 2);

// fail() throws Error(kind, printf text). fail_if() throws only if `is_wrong` is true. C++ evaluates the arguments of a
// call in any order and even if `is_wrong` is false. So all arguments must always be valid, and evaluating `is_wrong`
// must not change them.
[[noreturn]] void fail(ErrorKind kind, const char * fmt, ...) EAGLECPP_PRINTF(2, 3);
void fail_if(bool is_wrong, ErrorKind kind, const char * fmt, ...) EAGLECPP_PRINTF(3, 4);

}  // namespace eaglecpp
