// SPDX-License-Identifier: MIT
// Declares llguidance's C interface (parser/llguidance.h). The functions come from the shared library in llguidance's
// Python package. The library is not linked; it is loaded at the first use of a grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace eaglecpp {

struct LlgTokenizer;
struct LlgMatcher;

// llguidance's LlgTokenizerInitV2. The library reads the size of this struct from its first field.
struct LlgTokenizerInit {
    size_t struct_size = sizeof(LlgTokenizerInit);
    uint32_t vocab_size = 0, tok_eos = 0;
    const uint32_t * token_lens = nullptr;
    const uint8_t * token_bytes = nullptr;
    const char * tokenizer_json = nullptr;
    bool tokenize_assumes_string = true;
    size_t (*tokenize_fn)(const void * user_data, const uint8_t * bytes, size_t n_bytes, uint32_t * tokens,
                          size_t n_max) = nullptr;
    bool use_approximate_greedy_tokenize_fn = false;
    const void * tokenize_user_data = nullptr;
    const char * const * slices = nullptr;
    const uint32_t * tok_eos_extra = nullptr;
    uint32_t tok_eos_extra_count = 0;
};

// llguidance's LlgConstraintInit, which has no size field. `unused` reserves memory for fields of later versions.
struct LlgConstraintInit {
    const LlgTokenizer * tokenizer = nullptr;
    uint32_t log_buffer_level = 0, log_stderr_level = 0;
    bool ff_tokens_ok = false, backtrack_ok = false;
    size_t max_items_in_row = 0;
    uint64_t initial_lexer_fuel = 0, step_lexer_fuel = 0;
    size_t step_max_items = 0, max_lexer_states = 0, max_grammar_size = 0;
    bool precompute_large_lexemes = false, verbose_errors = false;
    uint8_t unused[256] = {};
};

// llguidance's functions that eaglecpp calls. They are thread-safe as long as no two threads use the same matcher.
struct Llguidance {
    LlgTokenizer * (*new_tokenizer_v2)(const LlgTokenizerInit *, char * error, size_t n_error);
    void (*free_tokenizer)(LlgTokenizer *);
    void (*constraint_init_set_defaults)(LlgConstraintInit *, const LlgTokenizer *);
    LlgMatcher * (*new_matcher)(const LlgConstraintInit *, const char * kind, const char * grammar);
    void (*free_matcher)(LlgMatcher *);
    const char * (*matcher_get_error)(LlgMatcher *);
    bool (*matcher_is_accepting)(LlgMatcher *);
    bool (*matcher_is_stopped)(const LlgMatcher *);
    int32_t (*matcher_compute_mask_into)(LlgMatcher *, uint32_t * mask, size_t n_bytes);
    int32_t (*matcher_validate_tokens)(LlgMatcher *, const uint32_t * tokens, size_t n);
    int32_t (*matcher_consume_tokens)(LlgMatcher *, const uint32_t * tokens, size_t n);
    int32_t (*matcher_rollback)(LlgMatcher *, size_t n);
    int32_t (*matcher_compute_ff_tokens)(LlgMatcher *, uint32_t * tokens, size_t n_max);

    // Loads the library; later calls do nothing. Error(unsupported) if the library lacks a function.
    static void load(const std::string & path);

    // Returns the functions of the loaded library. Error(grammar) before load().
    static const Llguidance & get();
};

}  // namespace eaglecpp
