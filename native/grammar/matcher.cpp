// SPDX-License-Identifier: MIT
#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/stack.h"

namespace eaglecpp {

// First byte of the pieces of end tokens. No text contains this byte.
static constexpr char end_mark = '\xFF';

// Maximum numbers of parser items: n_places in general, n_places_json for JSON. A schema takes four items for each
// optional property. In an ambiguous grammar, the time per token grows with the square of the number of items. At the
// maximum, a token takes up to 0.1 s.
static constexpr size_t n_places = 1000, n_places_json = 10000;

// The drafts' matcher skips some calls after several consecutive slow calls, which keeps its average cost per round
// low. A single slow call does not count, because another process may have taken the core.
static constexpr double slow_ms = 2.0, n_rest_per_ms = 8.0, n_rest_max = 1000.0;
static constexpr int n_slow_max = 3;

static size_t call_tokenize(const void * user_data, const uint8_t * bytes, size_t n_bytes, uint32_t * tokens,
                            size_t n_max) {
    Tokens found;
    try {
        found = (*(const GrammarVocabulary::Tokenize *)user_data)(std::string((const char *)bytes, n_bytes));
    } catch (...) {  // no exception may reach Rust
    }
    for (size_t i = 0; i < std::min(n_max, found.size()); ++i) tokens[i] = (uint32_t)found[i];
    return found.size();
}

GrammarVocabulary::GrammarVocabulary(const std::vector<std::string> & pieces, const std::vector<bool> & is_end,
                                     Tokenize tokenize)
    : is_end_(is_end), tokenize_(std::move(tokenize)) {
    std::string bytes;
    std::vector<uint32_t> lens, ends;
    for (size_t token = 0; token < pieces.size(); ++token) {
        std::string piece = pieces[token].substr(0, pieces[token].find('\0'));
        pieces_.push_back(is_end[token] ? std::string() : piece);
        if (is_end[token]) piece = end_mark + piece, ends.push_back((uint32_t)token);
        lens.push_back((uint32_t)piece.size());
        bytes += piece;
    }
    LlgTokenizerInit init;
    init.vocab_size = (uint32_t)pieces.size();
    init.tok_eos = ends.empty() ? UINT32_MAX : ends[0];
    init.token_lens = lens.data();
    init.token_bytes = (const uint8_t *)bytes.data();
    init.tokenize_fn = &call_tokenize;
    init.tokenize_user_data = &tokenize_;
    init.tok_eos_extra = ends.data();
    init.tok_eos_extra_count = (uint32_t)ends.size();
    char error[512] = "";
    tokenizer_ = Llguidance::get().new_tokenizer_v2(&init, error, sizeof(error));
    if (!tokenizer_) fail(ErrorKind::grammar, "the model's vocabulary cannot be used with grammars: %s", error);
}

GrammarVocabulary::~GrammarVocabulary() {
    Llguidance::get().free_tokenizer(tokenizer_);
}

// The text's matcher does not force tokens: its mask allows every tokenization.
GrammarMatcher::GrammarMatcher(const std::string & text, std::shared_ptr<const GrammarVocabulary> vocabulary)
    : llg_(Llguidance::get()),
      vocabulary_(std::move(vocabulary)),
      matcher_(make("%llguidance {\"no_forcing\": true}\n" + text)),
      drafts_(make(text)),
      bits_(((size_t)vocabulary_->size() + 31) / 32),
      allowed_((size_t)vocabulary_->size()) {
    if (llg_.matcher_get_error(matcher_.get())) give_up();
    allowed();  // computes the first mask now, which takes longest
}

// Stack size that no schema exceeds. llguidance's compiler recurses along the references of a schema.
static constexpr size_t n_stack = (size_t)64 << 20;

GrammarMatcher::Matcher GrammarMatcher::make(const std::string & text) const {
    LlgConstraintInit init;
    llg_.constraint_init_set_defaults(&init, vocabulary_->get());
    init.log_stderr_level = 0;
    init.max_items_in_row = text.find("%json") == std::string::npos ? n_places : n_places_json;
    init.verbose_errors = false;
    Matcher out;
    const auto call = [&] { out.reset(llg_.new_matcher(&init, "lark", text.c_str())); };
    fail_if(!run_on_stack(n_stack, call), ErrorKind::out_of_memory,
            "no room for a stack of %zu MB to compile a grammar", n_stack >> 20);
    return out;
}

void GrammarMatcher::give_up() const {
    const char * error = llg_.matcher_get_error(matcher_.get());
    std::string text = error ? error : "llguidance gives no reason";
    text = text.substr(0, text.find("\n   1 |"));  // llguidance appends the grammar in eaglecpp's form
    fail(ErrorKind::grammar, "the grammar: %.600s", text.c_str());
}

bool GrammarMatcher::allows(Token token) {
    if (has_mask_ || vocabulary_->is_end(token)) return allowed()[token];
    const int32_t n = llg_.matcher_validate_tokens(matcher_.get(), (const uint32_t *)&token, 1);
    if (n < 0) give_up();
    return n == 1;
}

const std::vector<bool> & GrammarMatcher::allowed() {
    if (has_mask_) return allowed_;
    if (llg_.matcher_compute_mask_into(matcher_.get(), bits_.data(), bits_.size() * sizeof(uint32_t)) != 0) give_up();
    for (size_t i = 0; i < allowed_.size(); ++i) allowed_[i] = bits_[i / 32] >> (i % 32) & 1;
    has_mask_ = true;
    return allowed_;
}

void GrammarMatcher::accept(Token token) {
    if (!allows(token)) fail(ErrorKind::grammar, "the grammar does not allow token %d at this point", token);
    if (vocabulary_->is_end(token)) return;
    has_mask_ = false;
    if (llg_.matcher_consume_tokens(matcher_.get(), (const uint32_t *)&token, 1) != 0) give_up();
    to_drafts_.push_back(token);
}

// Calls f with the drafts' matcher. At the call, the matcher has read the text and `path`.
template <typename F>
void GrammarMatcher::behind(const Tokens & path, F && f) {
    if (!drafts_ || n_rest_-- > 0) return;
    const double start = now_ms();
    LlgMatcher * m = drafts_.get();
    const auto consume = [&](const Tokens & tokens) {
        return llg_.matcher_consume_tokens(m, (const uint32_t *)tokens.data(), tokens.size()) == 0;
    };
    bool is_fine = consume(to_drafts_);
    to_drafts_.clear();
    const int32_t n = llg_.matcher_validate_tokens(m, (const uint32_t *)path.data(), path.size());
    if (is_fine && n == (int32_t)path.size()) {
        is_fine = consume(path);
        if (is_fine) f(m);
        is_fine = is_fine && llg_.matcher_rollback(m, path.size()) == 0;
    }
    if (!is_fine || n < 0) drafts_.reset();
    const double ms = now_ms() - start;
    n_slow_ = ms > slow_ms ? n_slow_ + 1 : 0;
    n_rest_ = n_slow_ >= n_slow_max ? (int)std::min(n_rest_max, ms * n_rest_per_ms) : 0;
}

std::vector<bool> GrammarMatcher::allows_behind(const Tokens & path, const Tokens & tokens) {
    std::vector<bool> out(tokens.size(), false);
    behind(path, [&](LlgMatcher * m) {
        const bool may_end = llg_.matcher_is_accepting(m) || llg_.matcher_is_stopped(m);
        for (size_t i = 0; i < tokens.size(); ++i) {
            out[i] = vocabulary_->is_end(tokens[i])
                         ? may_end
                         : llg_.matcher_validate_tokens(m, (const uint32_t *)&tokens[i], 1) == 1;
        }
    });
    return out;
}

// Returns the longest allowed token that is a prefix or an extension of every other allowed token, or -1. This token
// can only be the last token of a forced text, because the target may choose a longer token.
Token GrammarMatcher::open_end(LlgMatcher * m, bool & is_certain) {
    if (llg_.matcher_is_stopped(m)) return -1;
    if (llg_.matcher_compute_mask_into(m, bits_.data(), bits_.size() * sizeof(uint32_t)) != 0) return -1;
    std::vector<Token> allowed;
    std::string forced;
    bool is_cut = false;
    for (size_t i = 0; i < bits_.size(); ++i) {
        Token t = (Token)(32 * i);
        for (uint32_t rest = bits_[i]; rest != 0 && t < vocabulary_->size(); rest >>= 1, ++t) {
            if (!(rest & 1)) continue;
            const std::string & piece = vocabulary_->piece(t);
            const size_t n_max = std::min(forced.size(), piece.size());
            const size_t n_same =
                std::mismatch(piece.begin(), piece.begin() + n_max, forced.begin()).first - piece.begin();
            if (allowed.empty() || (!is_cut && n_same == forced.size())) {
                forced = piece;
            } else if (n_same < n_max) {
                forced.resize(n_same);
                is_cut = true;
            }
            if (forced.empty() || piece.empty()) return -1;
            allowed.push_back(t);
        }
    }
    is_certain = allowed.size() == 1 && forced.size() == 1;
    Token longest = -1;
    for (Token t : allowed) {
        const size_t n_bytes = vocabulary_->piece(t).size();
        if (n_bytes > forced.size()) continue;
        if (longest < 0 || n_bytes > vocabulary_->piece(longest).size()) longest = t;
    }
    return longest;
}

ForcedRun GrammarMatcher::forced_behind(const Tokens & path, int n_max) {
    ForcedRun out;
    behind(path, [&](LlgMatcher * m) {
        Tokens & run = out.tokens;
        run.resize((size_t)n_max);
        run.resize((size_t)std::max(0, llg_.matcher_compute_ff_tokens(m, (uint32_t *)run.data(), run.size())));
        run.resize((size_t)std::max(0, llg_.matcher_validate_tokens(m, (const uint32_t *)run.data(), run.size())));
        out.is_certain.assign(run.size(), false);
        if (run.empty() && !path.empty()) return;
        size_t n_read = 0;
        while ((int)run.size() < n_max) {
            const size_t n = run.size() - n_read;
            if (n > 0 && llg_.matcher_consume_tokens(m, (const uint32_t *)run.data() + n_read, n) != 0) return;
            n_read += n;
            bool is_certain = false;
            const Token end = open_end(m, is_certain);
            if (end < 0) break;
            run.push_back(end);
            out.is_certain.push_back(is_certain);
        }
        llg_.matcher_rollback(m, n_read);
    });
    return out;
}

void check_grammar(const std::string & text) {
    std::vector<std::string> pieces(256);
    std::vector<bool> is_end(256);
    for (size_t i = 0; i < 256; ++i) pieces[i] = std::string(i > 0, (char)i);
    is_end[0] = true;
    const auto tokenize = [](const std::string &) { return Tokens(); };  // a tokenizer is needed only for forced tokens
    GrammarMatcher(text, std::make_shared<GrammarVocabulary>(pieces, is_end, tokenize));
}

}  // namespace eaglecpp
