// SPDX-License-Identifier: MIT
// The test framework. A failed check prints its location and values, and the test continues. In the end the program
// returns 1. A program contains tests, `TEST(name) { ... }`, which main.cpp runs in order, or its own main().
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace eaglecpp::test {

inline int n_failed = 0;

inline bool report(bool is_fine, const char * file, int line, const std::string & what) {
    if (!is_fine) {
        ++n_failed;
        std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
    }
    return is_fine;
}

inline std::vector<void (*)()> & tests() {
    static std::vector<void (*)()> all;
    return all;
}

struct Registered {
    explicit Registered(void (*test)()) { tests().push_back(test); }
};

// Returns the exit status for main().
inline int result() {
    if (n_failed > 0) std::fprintf(stderr, "%d checks failed\n", n_failed);
    return n_failed > 0 ? 1 : 0;
}

}  // namespace eaglecpp::test

#define TEST(name)                                                   \
    static void name();                                              \
    static const eaglecpp::test::Registered registered_##name(name); \
    static void name()

#define CHECK(condition) eaglecpp::test::report((condition), __FILE__, __LINE__, #condition)

// Same as CHECK, but with values in the message: CHECK_MSG(a < b, strf("a %d b %d", a, b)).
#define CHECK_MSG(condition, message) \
    eaglecpp::test::report((condition), __FILE__, __LINE__, std::string(#condition) + ": " + (message))

#define CHECK_NEAR(a, b, tolerance)                                              \
    eaglecpp::test::report(                                                      \
        std::fabs((double)(a) - (double)(b)) <= (tolerance), __FILE__, __LINE__, \
        std::string(#a " is near " #b ": ") + std::to_string((double)(a)) + " and " + std::to_string((double)(b)))

// Checks that the statement throws an Error with a text that contains `part`.
#define CHECK_THROWS(statement, part)                                                                    \
    do {                                                                                                 \
        std::string what_;                                                                               \
        try {                                                                                            \
            statement;                                                                                   \
        } catch (const eaglecpp::Error & e) {                                                            \
            what_ = e.what();                                                                            \
        }                                                                                                \
        eaglecpp::test::report(what_.find(part) != std::string::npos, __FILE__, __LINE__,                \
                               std::string(#statement " fails with '" part "', found '") + what_ + "'"); \
    } while (0)
