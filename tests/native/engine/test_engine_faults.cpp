// SPDX-License-Identifier: MIT
// Tests exceptions at every point of a step. After an exception, the engine either continues as if nothing had
// happened, or reports that it is broken.
#include <llama.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>

#include "../check.h"
#include "base/error.h"
#include "draft/hidden_state_sequence.h"
#include "gguf/guard.h"
#include "tiny_models.h"

using namespace eaglecpp;

static const Tokens prompt = {1, 5, 7, 9, 2, 4, 8, 16, 3};
static const Strategy tree = {Strategy::Kind::tree, 2, 3, 8};
static const test::TinyPair files;
static const std::string &target = files.target, &draft = files.draft;

TEST(a_sequence_steps_once_at_a_time) {
    Engine engine(test::tiny_options(target, draft, 2));
    const int a = engine.open_sequence(), b = engine.open_sequence();
    engine.begin(a, prompt, test::greedy(tree));
    engine.begin(b, prompt, test::greedy(tree));
    CHECK_THROWS(engine.step({a, b, a}), "listed twice");
    // The refused call has changed neither sequence.
    while (engine.sequence(a).is_active) engine.step({a, b});
    CHECK(engine.sequence(a).tokens == engine.sequence(b).tokens);
}

// An engine is retired before it is freed. Retiring fails while a call runs. After retiring, no call can begin.
TEST(no_step_begins_after_an_engine_is_retired) {
    for (int i = 0; i < 40; ++i) {
        Engine engine(test::tiny_options(target, draft));
        const int id = engine.open_sequence();
        engine.begin(id, prompt, test::greedy(tree, 64));
        std::atomic<bool> has_begun{false}, is_retired{false};
        std::atomic<int> n_late{0};
        std::thread steps([&] {
            for (bool was_retired = false; !was_retired;) {
                was_retired = is_retired;
                try {
                    if (engine.sequence(id).is_active) engine.step({id});
                    n_late += was_retired && engine.sequence(id).is_active;
                } catch (const Error & e) {
                    CHECK(e.kind == ErrorKind::busy);
                }
                has_begun = true;
            }
        });
        while (!has_begun) std::this_thread::yield();
        while (!is_retired) {
            try {
                engine.retire();
                is_retired = true;
            } catch (const Error & e) {
                CHECK(e.kind == ErrorKind::busy);
            }
        }
        steps.join();
        CHECK(n_late == 0);
        CHECK_THROWS(engine.retire(), "in use by another thread and cannot be closed");
    }
}

// Logits stay in the memory of the last decode's graph (ggml_hook/hook.h). So they are valid until the next decode.
TEST(logits_stay_until_the_next_decode_and_no_longer) {
    EngineOptions o = test::tiny_options(target, "");
    Target it(o);
    it.open_context({});
    const SeqRange range = it.cells().seqs(0);
    const auto decode = [&](Target & t, int n_rows, Pos first) {
        TargetBatch batch;
        for (int i = 0; i < n_rows; ++i) batch.add(prompt[i % prompt.size()], first + i, range, i == 0 || n_rows < 9);
        t.decode(batch);
    };
    CHECK_THROWS(it.logits(0), "the last decode failed or no decode has run");
    decode(it, 3, 0);
    const auto read = [&] {
        std::vector<float> all;
        for (int i = 0; i < 3; ++i) all.insert(all.end(), it.logits(i), it.logits(i) + it.vocab().size());
        return all;
    };
    const std::vector<float> logits = read();
    // These calls happen between two reads of logits: saving, dropping and restoring cells, and using another context.
    std::vector<uint8_t> rows;
    it.cells().save_rows(range, rows);
    it.cells().truncate(range, 1);
    CHECK(it.cells().load_rows(range, {rows.data(), rows.size()}, 3));
    Target other(o);
    other.open_context({});
    decode(other, 5, 0);
    CHECK(read() == logits);
    // Batches run until the context is full. Then one more batch runs.
    bool is_full = false;
    for (Pos at = 3; at < 4096 && !is_full; at += 31) {
        try {
            decode(it, 31, at);
        } catch (const Error & e) {
            is_full = e.kind == ErrorKind::context_full;
        }
    }
    CHECK(is_full);
    CHECK_THROWS(it.logits(0), "the last decode failed");
    CHECK_THROWS(it.hidden_states(), "the last decode failed");
}

#ifndef _WIN32
#include <dlfcn.h>

// The functions below replace functions of libllama and ggml in all calls from eaglecpp.
static int n_calls = 0, fails_at = -1;
static bool is_decoding = false;  // set during llama.cpp's own calls, which do not count
static std::function<void()> fault;
static int n_logits = -1;  // number of rows of logits that can be read before one read fails

static void count_call() {
    if (!is_decoding && n_calls++ == fails_at) fault();
}

extern "C" int32_t llama_decode(llama_context * ctx, llama_batch batch) {
    count_call();
    static const auto real = (decltype(&llama_decode))dlsym(RTLD_NEXT, "llama_decode");
    is_decoding = true;
    const int32_t status = real(ctx, batch);
    is_decoding = false;
    return status;
}

static llama_memory_t sound = nullptr;  // if set, removing rows fails in every memory except this one

extern "C" bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id id, llama_pos from, llama_pos to) {
    if (sound && memory != sound) fail(ErrorKind::broken, "an assertion");
    static const auto real = (decltype(&llama_memory_seq_rm))dlsym(RTLD_NEXT, "llama_memory_seq_rm");
    return real(memory, id, from, to);
}

extern "C" float * llama_get_logits_ith(llama_context * ctx, int32_t i) {
    if (n_logits-- == 0) fault();
    static const auto real = (decltype(&llama_get_logits_ith))dlsym(RTLD_NEXT, "llama_get_logits_ith");
    return real(ctx, i);
}

// Returns the addresses of all byte arrays that were allocated, including ggml's work buffers.
static std::set<void *> & arrays() {
    static auto * all = new std::set<void *>;
    return *all;
}
static std::mutex arrays_mutex;
static size_t n_bytes_failing = SIZE_MAX;  // the first allocation of this size fails, and later allocations succeed
static int n_freed_twice = 0;

void * operator new[](size_t n) {
    const std::lock_guard lock(arrays_mutex);
    if (n >= n_bytes_failing) {
        n_bytes_failing = SIZE_MAX;
        throw std::bad_alloc();
    }
    void * p = std::malloc(n);
    if (!p) throw std::bad_alloc();
    arrays().insert(p);
    return p;
}

void operator delete[](void * p) noexcept {
    const std::lock_guard lock(arrays_mutex);
    if (!p) return;
    if (arrays().erase(p) == 0) {
        ++n_freed_twice;
    } else {
        std::free(p);
    }
}

void operator delete[](void * p, size_t) noexcept {
    operator delete[](p);
}

extern "C" enum ggml_status ggml_backend_graph_compute_async(ggml_backend_t backend, struct ggml_cgraph * graph) {
    count_call();
    static const auto real =
        (decltype(&ggml_backend_graph_compute_async))dlsym(RTLD_NEXT, "ggml_backend_graph_compute_async");
    return real(backend, graph);
}

// Returns K and V of the drafter's committed rows.
static std::vector<uint8_t> memory_of(const DraftSequence & sequence) {
    const auto & s = static_cast<const HiddenStateSequence &>(sequence);
    std::vector<uint8_t> all;
    for (const ggml_tensor * t : {s.kv().k()[0], s.kv().v()[0]}) {
        std::vector<uint8_t> bytes(ggml_nbytes(t));
        ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size());
        all.insert(all.end(), &bytes[0], &bytes[0] + s.n_rows() * t->nb[1]);
    }
    return all;
}

struct Outcome {
    Tokens tokens;
    std::vector<uint8_t> memory;
};

static Outcome run(Engine & engine, int id) {
    Outcome out;
    out.tokens = test::generate(engine, id, prompt, test::greedy(tree, 12));
    const Sequence & s = engine.sequence(id);
    CHECK_MSG(s.draft->n_rows() + s.n_pending() == s.n_past,
              strf("%d rows, %d pending, %d past", s.draft->n_rows(), s.n_pending(), s.n_past));
    out.memory = memory_of(*s.draft);
    return out;
}

// A long prompt is committed in several parts, and a later part may fail.
static const Tokens & long_prompt() {
    static const Tokens tokens = [] {
        Tokens t;
        for (int i = 0; i < 200; ++i) t.push_back((i * 7 + i / 5) % 20);
        return t;
    }();
    return tokens;
}

// Tests a fault in every call of every kind.
TEST(running_out_of_memory_leaves_no_trace) {
    EngineOptions o = test::tiny_options(target, draft);
    o.n_ctx = 256, o.n_batch = 192;
    Engine engine(o);
    const int id = engine.open_sequence();
    const Outcome fresh = run(engine, id);
    fault = [] { throw Error(ErrorKind::out_of_memory, "no memory"); };
    for (int at = 0;; ++at) {
        bool has_failed = false;
        try {
            engine.clear(id);
            n_calls = 0, fails_at = at;
            test::generate(engine, id, at % 2 ? prompt : long_prompt(), test::greedy(tree, 12));
        } catch (const Error & e) {
            has_failed = e.kind == ErrorKind::out_of_memory;
        }
        fails_at = -1;
        if (!has_failed) {
            CHECK_MSG(at > 12, strf("only %d calls", at));
            break;
        }
        const std::string what = strf("at call %d", at);
        CHECK_MSG(!engine.sequence(id).is_active, what);
        const Outcome again = run(engine, id);
        CHECK_MSG(again.tokens == fresh.tokens, what);
        CHECK_MSG(again.memory == fresh.memory, what + ": the drafter's cache differs");
    }
}

// Tests a fault in ggml's CPU backend. The backend frees its work buffer, and then it cannot allocate a larger one.
TEST(a_work_buffer_that_does_not_fit_is_not_used_again) {
    EngineOptions o = test::tiny_options(target, draft);
    o.n_ctx = 256, o.n_batch = 192;
    bool has_failed = false;
    {
        Engine engine(o);
        const int id = engine.open_sequence();
        const Tokens fresh = test::generate(engine, id, prompt, test::greedy({}, 12));
        engine.clear(id);
        n_bytes_failing = 4096;  // this size is larger than the work buffer for a single row
        try {
            test::generate(engine, id, long_prompt(), test::greedy({}, 12));
        } catch (const Error & e) {
            has_failed = e.kind == ErrorKind::out_of_memory;
            CHECK_MSG(has_failed, e.what());
        }
        n_bytes_failing = SIZE_MAX;
        engine.clear(id);
        CHECK(test::generate(engine, id, prompt, test::greedy({}, 12)) == fresh);
    }
    CHECK(has_failed);
    CHECK_MSG(n_freed_twice == 0, strf("%d arrays were freed twice", n_freed_twice));
}

// The second conversation of a round fails after the first conversation has succeeded. So neither conversation delivers
// tokens.
TEST(a_step_of_several_is_all_or_nothing) {
    Engine engine(test::tiny_options(target, draft, 2));
    const int a = engine.open_sequence(), b = engine.open_sequence();
    const Tokens fresh = test::generate(engine, a, prompt, test::greedy({}, 40));
    for (const int n_rows : {0, 1}) {
        Tokens given = prompt;
        for (int id : {a, b}) engine.begin(id, prompt, test::greedy({}, 40));
        const auto step = [&] {
            for (const StepResult & r : engine.step({a, b})) {
                if (r.sequence == a) given.insert(given.end(), r.tokens.begin(), r.tokens.end());
            }
        };
        while (engine.sequence(b).is_prefilling()) step();
        step();
        fault = [] { throw Error(ErrorKind::out_of_memory, "no memory"); };
        n_logits = n_rows;
        CHECK_THROWS(engine.step({a, b}), "no memory");
        n_logits = -1;
        CHECK_MSG(engine.sequence(a).tokens == given,
                  strf("found %zu tokens, expected %zu", engine.sequence(a).tokens.size(), given.size()));
        CHECK(test::generate(engine, a, prompt, test::greedy({}, 40)) == fresh);
    }
}

// If a call runs several rounds and a later round fails, the tokens of the earlier rounds are kept. The next call for
// this conversation raises the error, even if other conversations continue in between.
TEST(the_error_of_a_later_round_comes_after_the_earlier_tokens) {
    Engine engine(test::tiny_options(target, draft, 2));
    const int a = engine.open_sequence(), b = engine.open_sequence();
    engine.begin(a, prompt, test::greedy({}, 40));
    while (engine.step({a})[0].tokens.empty()) {
    }
    fault = [] { throw Error(ErrorKind::out_of_memory, "no memory"); };
    n_calls = 0, fails_at = 2;
    const std::vector<StepResult> results = engine.step({a}, 1e6);
    fails_at = -1;
    CHECK_MSG(results[0].tokens.size() == 2, strf("%zu tokens", results[0].tokens.size()));
    CHECK(test::generate(engine, b, prompt, test::greedy({}, 5)).size() == 5);
    CHECK_THROWS(engine.step({a}, 1e6), "no memory");
    CHECK(test::generate(engine, a, prompt, test::greedy({}, 5)).size() == 5);
}

// Two conversations fail in a later round, and one of them is closed before the next call. The next call must still
// raise the error for the other conversation.
TEST(a_late_error_is_raised_for_the_rest_of_its_batch) {
    Engine engine(test::tiny_options(target, draft, 2));
    const int a = engine.open_sequence(), b = engine.open_sequence();
    for (int id : {a, b}) engine.begin(id, prompt, test::greedy({}, 40));
    while (engine.sequence(b).is_prefilling()) engine.step({a, b});
    fault = [] { throw Error(ErrorKind::out_of_memory, "no memory"); };
    n_calls = 0, fails_at = 1;
    engine.step({a, b}, 1e6);
    fails_at = -1;
    engine.end(b, -1);
    CHECK_THROWS(engine.step({a}), "no memory");
    CHECK(test::generate(engine, a, prompt, test::greedy({}, 5)).size() == 5);
}

TEST(ending_with_too_many_tokens_changes_nothing) {
    Engine engine(test::tiny_options(target, draft));
    const int id = engine.open_sequence();
    const Tokens fresh = test::generate(engine, id, prompt, test::greedy(tree, 12));
    const Tokens before = engine.sequence(id).tokens;
    for (int n_taken : {INT_MAX, INT_MAX - 4, 13}) {
        engine.end(id, n_taken);
        CHECK(engine.sequence(id).tokens == before);
    }
    CHECK(test::generate(engine, id, prompt, test::greedy(tree, 12)) == fresh);
}

// The destructor of a small model's sequence removes the sequence's rows. An assertion of llama.cpp may fail during
// this.
TEST(an_assertion_at_the_end_of_a_drafter_does_not_end_the_process) {
    const std::string small = files.folder.file("small.gguf");
    test::write_target(small);
    Engine engine(test::tiny_options(target, small));
    const int id = engine.open_sequence();
    test::generate(engine, id, prompt, test::greedy({}, 5));
    sound = llama_get_memory(engine.target().context());
    engine.close_sequence(id);
    sound = nullptr;
}

// Tests exceptions of a driver, and thrown objects that are no exceptions.
TEST(foreign_exceptions_break_the_engine) {
    const std::pair<const char *, std::function<void()>> kinds[] = {
        {"device lost", [] { throw std::runtime_error("device lost"); }},
        {"an unknown exception", [] { throw 42; }},
        {"an assertion", [] { throw Error(ErrorKind::broken, "an assertion"); }},
        {"ran out of memory inside", [] { throw std::bad_alloc(); }},
    };
    for (const auto & [text, thrower] : kinds) {
        for (int at : {0, 1, 4}) {  // the faults occur in the prefill, in the drafter's prefill, and in a round
            Engine engine(test::tiny_options(target, draft));
            const int id = engine.open_sequence();
            fault = thrower;
            n_calls = 0, fails_at = at;
            std::string what;
            try {
                test::generate(engine, id, prompt, test::greedy(tree));
            } catch (const Error & e) {
                what = e.what();
                CHECK_MSG(e.kind == ErrorKind::broken, what);
            } catch (...) {
                what = "an exception that is not ours";
            }
            fails_at = -1;
            CHECK_MSG(what.find(text) != std::string::npos, strf("call %d: ", at) + what);
            const bool says_why = std::string(text) != "an unknown exception";
            try {
                engine.begin(id, prompt, test::greedy(tree));
                what = "nothing";
            } catch (const Error & e) {
                what = e.what();
            }
            const bool repeats = what.find(says_why ? text : "unknown exception") != std::string::npos;
            CHECK_MSG(repeats && what.find("unusable") != std::string::npos, what);
        }
    }
}
#endif
