// SPDX-License-Identifier: MIT
#include "target/vocabulary.h"

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cctype>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/stack.h"
#include "gguf/guard.h"

namespace eaglecpp {

// Returns a value that is made at the first call. Two threads may make the value at the same time; both results are
// equal.
template <typename T, typename Make>
static std::shared_ptr<const T> made_once(std::shared_ptr<const T> & kept, Make && make) {
    std::shared_ptr<const T> found = std::atomic_load(&kept);
    if (found) return found;
    found = make();
    std::atomic_store(&kept, found);
    return found;
}

// Returns the output that `call` writes into a buffer of a given size. `call` returns the length, negative if the
// buffer was too small.
template <typename Out, typename Call>
static Out written(size_t n_guess, Call && call) {
    Out out(n_guess, {});
    int n = call(out.data(), (int32_t)out.size());
    if (n < 0) {
        out.resize(-n);
        n = call(out.data(), (int32_t)out.size());
    }
    out.resize(std::max(n, 0));
    return out;
}

static std::string piece_of(const llama_vocab * vocab, Token token, bool special) {
    return written<std::string>(
        32, [&](char * to, int32_t n) { return llama_token_to_piece(vocab, token, to, n, 0, special); });
}

// Part of a text, text[begin, end): a special token, or the text between two special tokens (token = -1).
struct TextPart {
    size_t begin, end;
    Token token;
};

// Finds the special tokens of a text in linear time. llama.cpp's time is quadratic in the number of matches.
class SpecialTokens {
  public:
    explicit SpecialTokens(const llama_vocab * vocab);

    // False if the tokenizer adds something to a part of a text that depends on its other parts.
    bool knows_parts = true;

    // Splits a text as llama.cpp's tokenizer_st_partition does. The parts between special tokens are tokenised
    // independently, so the tokens of a text are the concatenation of its parts' tokens. Returns nullopt if the text
    // has more than n_max special tokens.
    std::optional<std::vector<TextPart>> parts(std::string_view text, bool parse_special, size_t n_max) const;

  private:
    struct Special {
        std::string text;
        Token token;
        bool is_hidden;  // not found in a text if special tokens are not parsed
        bool strips_left, strips_right;
    };

    const llama_vocab * vocab_;
    std::vector<Special> specials_;  // the special tokens in llama.cpp's order
};

SpecialTokens::SpecialTokens(const llama_vocab * vocab) : vocab_(vocab) {
    const int n = llama_vocab_n_tokens(vocab_);
    constexpr int hidden = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
    for (Token t = 0; t < n; ++t) {
        const int attr = llama_vocab_get_attr(vocab_, t);
        if (!(attr & (hidden | LLAMA_TOKEN_ATTR_USER_DEFINED))) continue;
        specials_.push_back({piece_of(vocab_, t, true), t, (attr & hidden) != 0, (attr & LLAMA_TOKEN_ATTR_LSTRIP) != 0,
                             (attr & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
        if (specials_.back().text.empty()) knows_parts = false;
    }
    std::stable_sort(specials_.begin(), specials_.end(),
                     [](const Special & a, const Special & b) { return a.text.size() > b.text.size(); });

    const auto type = llama_vocab_type(vocab_);
    if (type != LLAMA_VOCAB_TYPE_SPM && type != LLAMA_VOCAB_TYPE_BPE) knows_parts = false;
}

std::optional<std::vector<TextPart>> SpecialTokens::parts(std::string_view text, bool parse_special,
                                                          size_t n_max) const {
    std::vector<TextPart> parts, next;
    if (!text.empty()) parts.push_back({0, text.size(), -1});
    // Most special tokens do not occur in a text. The set of all pairs of neighbouring bytes in the text excludes these
    // tokens.
    std::bitset<1 << 16> pairs;
    const auto pair = [](std::string_view s, size_t i) {
        return (size_t)(unsigned char)s[i] << 8 | (unsigned char)s[i + 1];
    };
    for (size_t i = 0; i + 1 < text.size(); ++i) pairs.set(pair(text, i));

    size_t n_found = 0;
    for (const Special & special : specials_) {
        if (special.is_hidden && !parse_special) continue;
        const std::string_view word = special.text;
        bool may_be = word.size() <= text.size();
        for (size_t i = 0; i + 1 < word.size() && may_be; ++i) may_be = pairs.test(pair(word, i));
        if (!may_be || text.find(word) == std::string_view::npos) continue;
        next.clear();
        for (const TextPart & part : parts) {
            if (part.token >= 0) {
                next.push_back(part);
                continue;
            }
            size_t begin = part.begin;
            while (begin < part.end) {
                const size_t at = text.substr(0, part.end).find(word, begin);
                if (at == std::string_view::npos) break;
                size_t left_end = at, right = at + word.size();
                while (special.strips_left && left_end > begin && std::isspace((unsigned char)text[left_end - 1]))
                    --left_end;
                if (left_end > begin) next.push_back({begin, left_end, -1});
                next.push_back({at, right, special.token});
                while (special.strips_right && right < part.end && std::isspace((unsigned char)text[right])) ++right;
                begin = right;
                if (++n_found > n_max) return std::nullopt;
            }
            if (begin < part.end) next.push_back({begin, part.end, -1});
        }
        std::swap(parts, next);
    }
    return parts;
}

// The pre-tokenizers of many models (Mistral, DeepSeek, GPT-4o) use std::regex, which recurses at least once per
// matched character. It needs 335 bytes of stack for each character (measured). A word of 50,000 letters would overflow
// a normal stack and end the process.
static constexpr size_t n_stack_per_char = 2048;
static constexpr size_t n_stack_default = 1 << 22;
static constexpr size_t n_stack_max = (size_t)1 << 32;

// Returns the length of the longest run of white space, or of characters without a line break. No pattern matches more
// than one such run.
static size_t longest_run(const std::string & text) {
    size_t longest = 0, line = 0, blank = 0;
    for (const char c : text) {
        const bool is_break = c == '\n' || c == '\r';
        line = is_break ? 0 : line + 1;
        blank = is_break || c == ' ' || (c >= '\t' && c <= '\f') || (unsigned char)c >= 0x80 ? blank + 1 : 0;
        longest = std::max({longest, line, blank});
    }
    return longest;
}

// Runs f on a stack that is large enough for the text.
static void on_stack_for(const std::string & text, const std::function<void()> & f) {
    if (text.size() * n_stack_per_char <= n_stack_default) return f();
    const size_t n_run = longest_run(text), n_stack = 2 * n_run * n_stack_per_char;
    if (n_stack <= n_stack_default) return f();
    fail_if(n_stack > n_stack_max, ErrorKind::value,
            "the text has %zu bytes without a line break; the limit is %zu bytes", n_run,
            n_stack_max / n_stack_per_char / 2);
    fail_if(!run_on_stack(n_stack_default + n_stack, [&] { guarded(f); }), ErrorKind::out_of_memory,
            "no room for a stack of %zu MB to tokenise %zu bytes without a line break", n_stack / 1000000, n_run);
}

static Tokens tokens_of(const llama_vocab * vocab, const std::string & text, bool add_special, bool parse_special) {
    return written<Tokens>(text.size() + 8, [&](Token * to, int32_t n_room) {
        int n = 0;
        try {
            on_stack_for(text, [&] {
                n = llama_tokenize(vocab, text.data(), (int32_t)text.size(), to, n_room, add_special, parse_special);
            });
        } catch (const std::logic_error &) {
            fail(ErrorKind::unsupported,
                 "the model's vocabulary (key 'tokenizer.ggml.tokens') has no token for a part of the text or for its "
                 "bytes, or the text is not UTF-8");
        }
        if (n == INT32_MIN) fail(ErrorKind::value, "the text is too long to tokenise at once; split it");
        return n;
    });
}

// Returns true if the beginning of a text shows that the text has more than n_max tokens. In most texts a token has
// fewer than 16 bytes. The rest of the text may change the last few tokens of this beginning, but hardly ever across a
// line end.
static bool exceeds(const llama_vocab * vocab, const std::string & text, bool parse_special, size_t n_max) {
    const size_t n_sure = n_max + 16;
    for (size_t n_bytes = 16 * n_sure; n_bytes < text.size(); n_bytes *= 4) {
        size_t end = text.rfind('\n', n_bytes - 1) + 1;
        if (end == 0) end = n_bytes;
        while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) --end;  // never cuts a character
        if (tokens_of(vocab, text.substr(0, end), false, parse_special).size() > n_sure) return true;
    }
    return false;
}

// Checks the tokens that tokenizers add around a text. llama.cpp asserts that these tokens exist.
static void check_borders(const llama_vocab * vocab) {
    const bool is_wpm = llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_WPM;
    const auto check = [](bool is_needed, Token token, const char * key) {
        if (!is_needed || token >= 0) return;
        fail(ErrorKind::gguf, "the model's file lacks key '%s', which its tokenizer needs; convert the model again",
             key);
    };
    check(is_wpm || llama_vocab_get_add_bos(vocab), llama_vocab_bos(vocab), "tokenizer.ggml.bos_token_id");
    check(is_wpm, llama_vocab_sep(vocab), "tokenizer.ggml.seperator_token_id");
    check(!is_wpm && llama_vocab_get_add_eos(vocab), llama_vocab_eos(vocab), "tokenizer.ggml.eos_token_id");
}

Vocabulary::Vocabulary(const llama_model * model) : vocab_(llama_model_get_vocab(model)) {}

std::shared_ptr<const SpecialTokens> Vocabulary::specials() const {
    return made_once(specials_, [&] { return std::make_shared<const SpecialTokens>(vocab_); });
}

std::optional<Tokens> Vocabulary::tokenize(const std::string & text, bool add_special, bool parse_special,
                                           int n_max) const {
    fail_if(text.size() > INT32_MAX - 8, ErrorKind::value, "the text has %zu bytes; the limit is %d bytes", text.size(),
            INT32_MAX - 8);
    const size_t n = (size_t)std::max(n_max, 0);
    Tokens out;
    const auto specials = this->specials();
    const bool is_whole = !specials->knows_parts;
    if (is_whole && add_special) check_borders(vocab_);
    const std::optional<std::vector<TextPart>> parts =
        is_whole ? std::vector<TextPart>{{0, text.size(), -1}} : specials->parts(text, parse_special, n);
    if (!parts) return std::nullopt;
    const auto border = [&](bool is_wanted, Token token) {
        if (!is_whole && add_special && is_wanted && token >= 0) out.push_back(token);
    };
    border(llama_vocab_get_add_bos(vocab_), llama_vocab_bos(vocab_));
    for (const TextPart & part : *parts) {
        if (out.size() > n) return std::nullopt;
        if (part.token >= 0) {
            out.push_back(part.token);
            continue;
        }
        const std::string piece = text.substr(part.begin, part.end - part.begin);
        const bool parses = is_whole && parse_special;
        if (exceeds(vocab_, piece, parses, n - out.size())) return std::nullopt;
        const Tokens tokens = tokens_of(vocab_, piece, is_whole && add_special, parses);
        out.insert(out.end(), tokens.begin(), tokens.end());
    }
    border(llama_vocab_get_add_eos(vocab_), llama_vocab_eos(vocab_));
    return out.size() > n ? std::nullopt : std::optional(std::move(out));
}

std::string Vocabulary::detokenize(const Tokens & tokens, bool remove_special, bool special) const {
    return written<std::string>(tokens.size() * 8 + 16, [&](char * to, int32_t n) {
        return llama_detokenize(vocab_, tokens.data(), (int32_t)tokens.size(), to, n, remove_special, special);
    });
}

void Vocabulary::check(const Tokens & tokens) const {
    for (Token t : tokens) {
        if (t < 0 || t >= size()) fail(ErrorKind::value, "token %d is outside the vocabulary of %d tokens", t, size());
    }
}

std::string Vocabulary::piece(Token token, bool special) const {
    check({token});
    return piece_of(vocab_, token, special);
}

// Returns the tokens of a text that is a part of a longer text.
static Tokens tokens_within(const llama_vocab * vocab, const std::string & text) {
    // Some tokenizers add a space before a text. So \x02, which merges with no other character, is put before the text,
    // and its tokens are removed from the result.
    static const std::string before = "\x02";
    const Tokens skipped = tokens_of(vocab, before, false, true);
    Tokens out = tokens_of(vocab, before + text, false, true);
    if (out.size() < skipped.size() || !std::equal(skipped.begin(), skipped.end(), out.begin())) return {};
    out.erase(out.begin(), out.begin() + (long)skipped.size());
    return out;
}

std::shared_ptr<const GrammarVocabulary> Vocabulary::for_grammars() const {
    return made_once(for_grammars_, [&] {
        std::vector<std::string> pieces(size());
        std::vector<bool> is_end(size());
        for (Token t = 0; t < size(); ++t) pieces[t] = piece(t, /*special=*/true), is_end[t] = is_eog(t);
        const auto tokenize = [vocab = vocab_](const std::string & text) { return tokens_within(vocab, text); };
        return std::make_shared<const GrammarVocabulary>(pieces, is_end, tokenize);
    });
}

}  // namespace eaglecpp
