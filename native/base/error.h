// SPDX-License-Identifier: MIT
// What can go wrong, one kind per cause. The bindings turn each kind into the class of the same name in
// `eaglecpp.errors`; what() carries what was expected, what was found, where, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace eaglecpp {

enum class ErrorKind {
    gguf,           // a file that cannot be read as what it should be
    mismatch,       // a drafter that does not fit its target
    unsupported,    // a target, switch or backend we cannot serve
    context_full,   // more tokens than the context holds
    out_of_memory,  // host or device
    busy,           // an engine used by two threads at once
    broken,         // an assertion of llama.cpp or ggml fired; the engine must be opened again
    grammar,        // a grammar that does not parse or leaves no token
    not_found,      // no such file
    value,          // misuse of a call: Python's ValueError
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

// printf into a std::string
std::string strf(const char * fmt, ...) EAGLECPP_PRINTF(1, 2);

// throws Error(kind, printf text)
[[noreturn]] void fail(ErrorKind kind, const char * fmt, ...) EAGLECPP_PRINTF(2, 3);

}  // namespace eaglecpp
