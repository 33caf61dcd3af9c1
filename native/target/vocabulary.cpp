// SPDX-License-Identifier: MIT
#include "target/vocabulary.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <exception>
#include <utility>

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "base/error.h"
#include "gguf/guard.h"
#include "target/text_split.h"

namespace eaglecpp {

#if defined(_WIN32)
template <typename F>
static void on_stack_for(const std::string &, F && f) {
    f();  // Microsoft's std::regex throws where the stack ends
}
#else
// The pre-tokenizers of many models (Mistral's, DeepSeek's, GPT-4o's) are std::regex, which recurses once or more for
// each character of what it matches: 335 bytes of stack a letter were measured. A word of 50,000 letters would end the
// process on a usual stack.
static constexpr size_t n_stack_per_char = 2048;
static constexpr size_t n_stack_usual = 1 << 22;
static constexpr size_t n_stack_most = (size_t)1 << 32;

// Longest run without a line break, or of white space: no pattern matches more than one of each.
static size_t longest_run(const std::string & text) {
    size_t most = 0, line = 0, blank = 0;
    for (const char c : text) {
        const bool is_break = c == '\n' || c == '\r';
        line = is_break ? 0 : line + 1;
        blank = is_break || c == ' ' || (c >= '\t' && c <= '\f') || (unsigned char)c >= 0x80 ? blank + 1 : 0;
        most = std::max({most, line, blank});
    }
    return most;
}

template <typename F>
static void * run_and_catch(void * p) {
    auto & [f, error] = *static_cast<std::pair<F &, std::exception_ptr> *>(p);
    try {
        guarded(f);
    } catch (...) {
        error = std::current_exception();
    }
    return nullptr;
}

// Runs f on a stack that the text cannot overflow. Pages of it that are not used cost nothing.
template <typename F>
static void on_stack_for(const std::string & text, F && f) {
    if (text.size() * n_stack_per_char <= n_stack_usual) return f();
    const size_t n_run = longest_run(text);
    const size_t n_stack = 2 * n_run * n_stack_per_char;
    if (n_stack <= n_stack_usual) return f();
    if (n_stack > n_stack_most) {
        fail(ErrorKind::value, "the text has %zu bytes without a line break; at most %zu can be tokenised", n_run,
             n_stack_most / n_stack_per_char / 2);
    }
    std::pair<F &, std::exception_ptr> job{f, nullptr};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, n_stack_usual + n_stack);
    const int failed = pthread_create(&thread, &attributes, &run_and_catch<F>, &job);
    pthread_attr_destroy(&attributes);
    if (failed) {
        fail(ErrorKind::out_of_memory, "no stack of %zu MiB for tokenising a text with %zu bytes without a line break",
             n_stack >> 20, n_run);
    }
    pthread_join(thread, nullptr);
    if (job.second) std::rethrow_exception(job.second);
}
#endif

// Appends llama.cpp's tokens of a text.
static void append_tokens(const llama_vocab * vocab, const std::string & text, bool add_special, bool parse_special,
                          Tokens & out) {
    const size_t n_before = out.size();
    const auto run = [&](size_t n_room) {
        out.resize(n_before + n_room);
        int n = 0;
        on_stack_for(text, [&] {
            n = llama_tokenize(vocab, text.data(), (int32_t)text.size(), out.data() + n_before, (int32_t)n_room,
                               add_special, parse_special);
        });
        return n;
    };
    int n = run(text.size() + 8);
    if (n == INT32_MIN) fail(ErrorKind::value, "the text is too long to tokenise in one piece");
    if (n < 0) n = run(-n);
    out.resize(n_before + std::max(n, 0));
}

// llama.cpp asserts that tokens are there which its tokenizers put around a text.
static void check_borders(const llama_vocab * vocab) {
    const bool is_wpm = llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_WPM;
    const auto check = [](bool is_needed, Token token, const char * key) {
        if (!is_needed || token >= 0) return;
        fail(ErrorKind::gguf, "the model's file lacks key '%s', which its tokenizer needs: convert the model again",
             key);
    };
    check(is_wpm || llama_vocab_get_add_bos(vocab), llama_vocab_bos(vocab), "tokenizer.ggml.bos_token_id");
    check(is_wpm, llama_vocab_sep(vocab), "tokenizer.ggml.seperator_token_id");
    check(!is_wpm && llama_vocab_get_add_eos(vocab), llama_vocab_eos(vocab), "tokenizer.ggml.eos_token_id");
}

Vocabulary::Vocabulary(const llama_model * model)
    : vocab_(llama_model_get_vocab(model)), split_(std::make_shared<TextSplit>(vocab_)) {}

std::optional<Tokens> Vocabulary::tokenize(const std::string & text, bool add_special, bool parse_special,
                                           int n_most) const {
    if (text.size() > INT32_MAX - 8) {
        fail(ErrorKind::value, "the text has %zu bytes; at most %d can be tokenised", text.size(), INT32_MAX - 8);
    }
    const size_t n = (size_t)std::max(n_most, 0);
    Tokens out;
    if (!split_->knows_parts()) {
        if (add_special) check_borders(vocab_);
        if (split_->exceeds(text, {{0, text.size(), -1}}, n)) return std::nullopt;
        append_tokens(vocab_, text, add_special, parse_special, out);
        return out.size() > n ? std::nullopt : std::optional(std::move(out));
    }
    const auto parts = split_->parts(text, parse_special, n);
    if (!parts || split_->exceeds(text, *parts, n)) return std::nullopt;
    const Token bos = llama_vocab_bos(vocab_), eos = llama_vocab_eos(vocab_);
    if (add_special && llama_vocab_get_add_bos(vocab_) && bos >= 0) out.push_back(bos);
    for (const TextPart & part : *parts) {
        if (part.token >= 0) {
            out.push_back(part.token);
        } else {
            append_tokens(vocab_, text.substr(part.begin, part.end - part.begin), false, false, out);
        }
        if (out.size() > n) return std::nullopt;
    }
    if (add_special && llama_vocab_get_add_eos(vocab_) && eos >= 0) out.push_back(eos);
    return out.size() > n ? std::nullopt : std::optional(std::move(out));
}

std::string Vocabulary::detokenize(const Tokens & tokens, bool remove_special, bool special) const {
    std::string out(tokens.size() * 8 + 16, '\0');
    int n = llama_detokenize(vocab_, tokens.data(), (int32_t)tokens.size(), out.data(), (int32_t)out.size(),
                             remove_special, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_detokenize(vocab_, tokens.data(), (int32_t)tokens.size(), out.data(), (int32_t)out.size(),
                             remove_special, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

std::string Vocabulary::piece(Token token, bool special) const {
    if (token < 0 || token >= size()) {
        fail(ErrorKind::value, "token id %d is outside the vocabulary of %d", token, size());
    }
    std::string out(32, '\0');
    int n = llama_token_to_piece(vocab_, token, out.data(), (int32_t)out.size(), 0, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_token_to_piece(vocab_, token, out.data(), (int32_t)out.size(), 0, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

std::shared_ptr<const TokenPieces> Vocabulary::pieces() const {
    std::shared_ptr<const TokenPieces> found = std::atomic_load(&pieces_);
    if (found) return found;
    std::vector<std::string> pieces(size());
    std::vector<bool> is_end(size());
    for (Token t = 0; t < size(); ++t) pieces[t] = piece(t, /*special=*/true), is_end[t] = is_eog(t);
    found = std::make_shared<TokenPieces>(pieces, std::move(is_end));
    std::atomic_store(&pieces_, found);  // another thread may have made the same
    return found;
}

}  // namespace eaglecpp
