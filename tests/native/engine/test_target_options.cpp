// SPDX-License-Identifier: MIT
// Tests the options for opening a target. If llama.cpp accepts the values, the target opens. Otherwise the target is
// refused, and the message gives the reason.
#include <llama.h>

#include <cstdint>
#include <type_traits>

#include "../check.h"
#include "base/error.h"
#include "base/log.h"
#include "draft/weights.h"
#include "target/amx.h"
#include "tiny_models.h"

using namespace eaglecpp;

// A copy would be unsafe, because other threads fill in values on demand.
static_assert(!std::is_copy_constructible_v<Vocabulary>);

#ifndef _WIN32
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>

// A trial runs a call in a child process. The effects of the call stay in the child process. The child process then
// ends and does not continue as a second copy of this program.
TEST(a_trial_in_a_child_ends_with_the_child) {
    const pid_t self = getpid();
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    CHECK(succeeds_in_child([] { return true; }, 10));
    CHECK(!succeeds_in_child([] { return false; }, 10));
    CHECK(!succeeds_in_child([]() -> bool { throw Error(ErrorKind::broken, "an assertion"); }, 10));
    CHECK(!succeeds_in_child([] { return std::raise(SIGILL) == 0; }, 10));
    CHECK(!succeeds_in_child([] { return sleep(100) == 0; }, 1));
    sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
    if (getpid() != self) std::abort();
}

// The function below replaces a function of libllama in all calls from eaglecpp. If is_short_of_memory is set, the
// function fails once, as if memory had run out.
static bool is_short_of_memory = false;

extern "C" llama_context * llama_init_from_model(llama_model * model, llama_context_params params) {
    if (is_short_of_memory) {
        is_short_of_memory = false;
        eaglecpp::log_line(eaglecpp::LogLevel::error, "llama_init_from_model: failed to allocate buffer for kv cache");
        return nullptr;
    }
    static const auto real = (decltype(&llama_init_from_model))dlsym(RTLD_NEXT, "llama_init_from_model");
    return real(model, params);
}

extern "C" llama_model * llama_model_load_from_file(const char * path, llama_model_params params) {
    if (is_short_of_memory) {
        is_short_of_memory = false;
        eaglecpp::log_line(eaglecpp::LogLevel::error, "llama_model_load: unable to allocate CPU buffer");
        return nullptr;
    }
    static const auto real = (decltype(&llama_model_load_from_file))dlsym(RTLD_NEXT, "llama_model_load_from_file");
    return real(path, params);
}
#endif

static const Tokens prompt = {1, 5, 7, 9};

static const test::TinyPair files;
static const std::string &target = files.target, &draft = files.draft;

static ErrorKind kind_of(const EngineOptions & options, std::string & text) {
    try {
        Engine engine(options);
    } catch (const Error & e) {
        text = e.what();
        return e.kind;
    }
    text = "it opened";
    return ErrorKind::busy;
}

TEST(all_sizes_of_trees_open) {
    for (int n_draft : {0, 1, 2, 4, 6, 7, 64}) {
        for (int n_leaves : {1, 2, 4, 6, 8, 70}) {
            for (int n_sequences : {1, 3}) {
                EngineOptions o = test::tiny_options(target, draft);
                o.n_draft_max = n_draft, o.n_leaves_max = n_leaves, o.n_sequences = n_sequences;
                const std::string what =
                    strf("n_draft_max %d, n_leaves_max %d, n_sequences %d", n_draft, n_leaves, n_sequences);
                try {
                    Engine engine(o);
                    const int id = engine.open_sequence();
                    Strategy strategy;
                    if (n_draft > 0) strategy = {Strategy::Kind::chain, 1, n_draft, n_draft};
                    if (n_draft > 1 && n_leaves > 1) strategy = {Strategy::Kind::tree, 2, 2, n_draft};
                    CHECK_MSG(test::generate(engine, id, prompt, test::greedy(strategy, 8)).size() == 8, what);
                } catch (const Error & e) {
                    CHECK_MSG(false, what + ": " + e.what());
                }
            }
        }
    }
}

TEST(impossible_sizes_are_refused_by_name) {
    const auto refused = [](void (*change)(EngineOptions &), const char * expected) {
        EngineOptions o = test::tiny_options(target, draft);
        change(o);
        std::string text;
        const ErrorKind kind = kind_of(o, text);
        CHECK_MSG(kind == ErrorKind::value && text.find(expected) != std::string::npos, text);
    };
    refused([](EngineOptions & o) { o.n_sequences = 64, o.n_ctx = 1 << 26; }, "n_sequences 64, n_ctx 67108864");
    // In 32 bits, 2 * (2^31 - 1 + 9) overflows to 16.
    refused([](EngineOptions & o) { o.n_sequences = 2, o.n_ctx = INT32_MAX; }, "n_ctx");
    refused([](EngineOptions & o) { o.n_sequences = 1 << 20; }, "n_sequences");
    refused([](EngineOptions & o) { o.n_sequences = 0; }, "n_sequences");
    refused([](EngineOptions & o) { o.n_draft_max = INT32_MAX; }, "n_draft_max");
    refused([](EngineOptions & o) { o.n_leaves_max = 0; }, "n_leaves_max");
    refused([](EngineOptions & o) { o.n_threads = 1 << 20; }, "n_threads");
    refused([](EngineOptions & o) { o.n_sequences = 200, o.n_leaves_max = 8; }, "llama.cpp allows");
}

// The error repeats the reason that llama.cpp has logged. A refusal does not count as a lack of memory.
TEST(refusals_of_llama_cpp_are_not_memory) {
    EngineOptions o = test::tiny_options(target, "");
    o.flash_attn = "off", o.type_v = "q8_0";
    std::string text;
    ErrorKind kind = kind_of(o, text);
    CHECK_MSG(kind == ErrorKind::unsupported && text.find("quantized V cache") != std::string::npos, text);
    o.flash_attn = "on", o.type_k = "q8_0";  // q8_0 has blocks of 32 numbers, but the heads have only 16 numbers
    kind = kind_of(o, text);
    CHECK_MSG(kind == ErrorKind::unsupported && text.find("does not divide") != std::string::npos, text);
}

TEST(words_in_the_log_are_not_memory) {
    const std::string path = files.folder.file("odd.gguf");
    test::TinyTarget shape;
    shape.architecture = "failed-to-allocate";
    test::write_target(path, shape);
    std::string text;
    const ErrorKind kind = kind_of(test::tiny_options(path, ""), text);
    CHECK_MSG(kind == ErrorKind::gguf && text.find("failed-to-allocate") != std::string::npos, text);
}

TEST(a_lack_of_memory_is_reported_as_such) {
#ifndef _WIN32
    std::string text;
    is_short_of_memory = true;
    CHECK_MSG(kind_of(test::tiny_options(target, ""), text) == ErrorKind::out_of_memory, text);
    TargetOptions options = test::tiny_options(target, "");
    Target opened(options);
    is_short_of_memory = true;
    try {
        opened.open_context({});
        CHECK_MSG(false, "it opened");
    } catch (const Error & e) {
        CHECK_MSG(e.kind == ErrorKind::out_of_memory, e.what());
    }
#endif
}

// ggml has no functions that read activation types or empty types.
TEST(weights_that_ggml_cannot_read_are_refused) {
    for (ggml_type type : {GGML_TYPE_Q8_1, GGML_TYPE_I32, GGML_TYPE_F64}) {
        for (bool is_embedding : {true, false}) {
            const std::string path = files.folder.file("types.gguf");
            test::TinyTarget shape;
            (is_embedding ? shape.type_embd : shape.type) = type;
            test::write_target(path, shape);
            std::string text;
            const ErrorKind kind = kind_of(test::tiny_options(path, ""), text);
            const char * name = is_embedding ? "token_embd.weight" : "output.weight";
            CHECK_MSG(kind == ErrorKind::gguf && text.find(name) != std::string::npos &&
                          text.find(ggml_type_name(type)) != std::string::npos,
                      text);
        }
        CHECK_THROWS(EmbeddingTable(std::vector<uint8_t>(4096), type, 32, 4), "cannot dequantise");
    }
}
