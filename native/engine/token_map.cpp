// SPDX-License-Identifier: MIT
#include "engine/token_map.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/error.h"

namespace eaglecpp {

namespace {

std::string text_of(const llama_vocab * vocab, Token token) {
    const char * text = llama_vocab_get_text(vocab, token);
    return text ? text : "";
}

// made by training the tokenizer, not added by hand
bool is_ordinary(const llama_vocab * vocab, Token token) {
    return (llama_vocab_get_attr(vocab, token) & (LLAMA_TOKEN_ATTR_NORMAL | LLAMA_TOKEN_ATTR_BYTE)) != 0;
}

// Special tokens of `from` by their text in `to`, all others by id; `other` where there is none.
std::vector<Token> mapped(const llama_vocab * from, const llama_vocab * to, Token other) {
    const int n_from = llama_vocab_n_tokens(from), n_to = llama_vocab_n_tokens(to);
    std::unordered_map<std::string, Token> specials;
    for (Token t = 0; t < n_to; ++t) {
        if (!is_ordinary(to, t)) specials.emplace(text_of(to, t), t);
    }
    std::vector<Token> out(n_from, other);
    for (Token t = 0; t < n_from; ++t) {
        if (t < n_to && text_of(from, t) == text_of(to, t)) {
            out[t] = t;
        } else if (const auto it = specials.find(text_of(from, t)); it != specials.end() && !is_ordinary(from, t)) {
            out[t] = it->second;
        }
    }
    return out;
}

}  // namespace

TokenMap match_tokens(const TargetModel & draft, const TargetModel & target) {
    const llama_vocab * own = llama_model_get_vocab(draft.get());
    const llama_vocab * theirs = llama_model_get_vocab(target.get());
    const int n_own = llama_vocab_n_tokens(own), n_theirs = llama_vocab_n_tokens(theirs);
    int n_differ = 0, n_specials = 0;
    Token first = -1;
    for (Token t = 0; t < std::max(n_own, n_theirs); ++t) {
        if (t < n_own && t < n_theirs && text_of(own, t) == text_of(theirs, t)) continue;
        ++n_specials;
        if ((t >= n_own || !is_ordinary(own, t)) && (t >= n_theirs || !is_ordinary(theirs, t))) continue;
        if (n_differ++ == 0) first = t;
    }
    if (n_differ > 0) {
        const auto shown = [&](const llama_vocab * vocab, int n) {
            return first < n ? "'" + text_of(vocab, first) + "'" : std::string("none");
        };
        fail(ErrorKind::mismatch,
             "%s cannot draft for %s: a small model must have the target's vocabulary, but %d tokens differ, the first "
             "is %d: %s here, %s in the target; use a small model of the same family",
             draft.path().c_str(), target.path().c_str(), n_differ, first, shown(own, n_own).c_str(),
             shown(theirs, n_theirs).c_str());
    }
    if (n_specials == 0) return {};
    const Token end = std::max<Token>(0, llama_vocab_eos(own));
    return {mapped(own, theirs, -1), mapped(theirs, own, end)};
}

}  // namespace eaglecpp
