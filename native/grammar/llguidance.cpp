// SPDX-License-Identifier: MIT
#include "grammar/llguidance.h"

#include <atomic>

#include "base/error.h"

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace eaglecpp {

static std::atomic<const Llguidance *> loaded{nullptr};

static void * open_library(const std::string & path) {
#if defined(_WIN32)
    const int n = MultiByteToWideChar(CP_UTF8, 0, path.c_str(), -1, nullptr, 0);
    std::wstring wide((size_t)n, L'\0');
    MultiByteToWideChar(CP_UTF8, 0, path.c_str(), -1, wide.data(), n);
    return (void *)LoadLibraryW(wide.c_str());
#else
    return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
#endif
}

template <typename F>
static void find(F *& out, void * library, const std::string & name, const std::string & path) {
#if defined(_WIN32)
    out = (F *)(void *)GetProcAddress((HMODULE)library, name.c_str());
#else
    out = (F *)dlsym(library, name.c_str());
#endif
    fail_if(!out, ErrorKind::unsupported,
            "llguidance's library %s has no function %s; install the version that eaglecpp requires", path.c_str(),
            name.c_str());
}

void Llguidance::load(const std::string & path) {
    if (loaded.load()) return;
    void * library = open_library(path);
    fail_if(!library, ErrorKind::unsupported, "llguidance's library %s cannot be loaded; install llguidance again",
            path.c_str());
    static Llguidance found;
    Llguidance f;
#define FIND(name) find(f.name, library, "llg_" #name, path)
    FIND(new_tokenizer_v2);
    FIND(free_tokenizer);
    FIND(constraint_init_set_defaults);
    FIND(new_matcher);
    FIND(free_matcher);
    FIND(matcher_get_error);
    FIND(matcher_is_accepting);
    FIND(matcher_is_stopped);
    FIND(matcher_compute_mask_into);
    FIND(matcher_validate_tokens);
    FIND(matcher_consume_tokens);
    FIND(matcher_rollback);
    FIND(matcher_compute_ff_tokens);
#undef FIND
    // LlgConstraintInit is the only struct without a size field. If the library writes the documented defaults at the
    // expected offsets, its layout matches this struct.
    LlgConstraintInit init;
    f.constraint_init_set_defaults(&init, (const LlgTokenizer *)&init);
    const bool is_same = init.tokenizer == (const LlgTokenizer *)&init && init.max_items_in_row == 2000 &&
                         init.initial_lexer_fuel == 1000000 && init.step_lexer_fuel == 200000 &&
                         init.step_max_items == 50000 && init.max_lexer_states == 250000 &&
                         init.max_grammar_size == 500000 && init.precompute_large_lexemes && init.verbose_errors;
    fail_if(!is_same, ErrorKind::unsupported,
            "llguidance's library %s has another layout of LlgConstraintInit; install the version of llguidance that "
            "eaglecpp requires",
            path.c_str());
    static std::atomic<bool> is_taken{false};
    if (!is_taken.exchange(true)) {
        found = f;
        loaded.store(&found);
    }
}

const Llguidance & Llguidance::get() {
    const Llguidance * found = loaded.load();
    if (!found) fail(ErrorKind::grammar, "llguidance is not loaded; create the grammar with eaglecpp.engine.grammar");
    return *found;
}

}  // namespace eaglecpp
