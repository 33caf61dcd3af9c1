// SPDX-License-Identifier: MIT
// What a grammar, or the JSON schema that becomes one, may cost: whoever sends it shares the engine with others. Every
// limit there is stands here; errors quote it, and SECURITY.md says what it is for (a test compares them).
#pragma once

#include <cstdint>

namespace eaglecpp {

struct GrammarLimits {
    static constexpr int64_t n_text_bytes = 1 << 20;      // GBNF
    static constexpr int64_t n_repetitions = 1000000000;  // the numbers in {m,n}; they are counted, never written out
    static constexpr int64_t n_token_names = 256;         // <name>s, each of which the tokenizer is asked about
    static constexpr int64_t n_token_name_bytes = 64;
    // Steps of the matcher, some 50 ns each: how many one token may take, and how many are given back by each token.
    static constexpr int64_t n_steps = 2000000;
    static constexpr int64_t n_steps_back = 200000;
    static constexpr int64_t n_frames = 1000000;  // 12 bytes each, of all states that are kept

    static constexpr int64_t n_schema_bytes = 1 << 20;  // of JSON text
    static constexpr int64_t n_schema_depth = 64;       // of schemas in schemas, and of groups in a pattern
    static constexpr int64_t n_schema_nodes = 10000;    // schemas; the values of an enum are none
};

}  // namespace eaglecpp
