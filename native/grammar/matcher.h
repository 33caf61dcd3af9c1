// SPDX-License-Identifier: MIT
// Which tokens may follow the text so far, by a grammar: llguidance's matchers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "algo/text.h"
#include "base/types.h"
#include "grammar/llguidance.h"

namespace eaglecpp {

// A vocabulary as llguidance needs it. Takes 0.2 s of processor time for 49,000 tokens.
class GrammarVocabulary {
  public:
    using Tokenize = std::function<Tokens(const std::string &)>;

    // pieces: bytes of each token; is_end: tokens that end a text; tokenize: of valid UTF-8, in any thread
    GrammarVocabulary(const std::vector<std::string> & pieces, const std::vector<bool> & is_end, Tokenize tokenize);
    ~GrammarVocabulary();
    GrammarVocabulary(const GrammarVocabulary &) = delete;
    GrammarVocabulary & operator=(const GrammarVocabulary &) = delete;

    int size() const { return (int)is_end_.size(); }
    bool is_end(Token token) const { return is_end_[token]; }
    // the bytes that a text has of it
    const std::string & piece(Token token) const { return pieces_[token]; }
    const LlgTokenizer * get() const { return tokenizer_; }

  private:
    std::vector<bool> is_end_;
    std::vector<std::string> pieces_;
    Tokenize tokenize_;
    LlgTokenizer * tokenizer_;
};

// The text and its drafts have a matcher each. What a draft asks changes nothing of what the text's matcher answers or
// when it gives up, so that a text is the same with and without drafting.
class GrammarMatcher {
  public:
    // text: in llguidance's variant of Lark. Error(grammar)
    GrammarMatcher(const std::string & text, std::shared_ptr<const GrammarVocabulary> vocabulary);

    // Error(grammar) where this takes too many steps, as for the next two
    bool allows(Token token);

    // By token id; valid until the next call.
    const std::vector<bool> & allowed();

    // Adds a token to the text; one that ends a text leaves it as it is. Error(grammar) also when it is not allowed.
    void accept(Token token);

    // For each of `tokens`: may it follow the text and then `path`? All false where `path` itself may not, and where
    // the drafts' matcher gave up or is slow.
    std::vector<bool> allows_behind(const Tokens & path, const Tokens & tokens);

    // The tokens that have to follow the text and then `path`, as the model would tokenize their text, at most n_max.
    ForcedRun forced_behind(const Tokens & path, int n_max);

  private:
    struct Free {
        void operator()(LlgMatcher * m) const { Llguidance::get().free_matcher(m); }
    };
    using Matcher = std::unique_ptr<LlgMatcher, Free>;

    Matcher make(const std::string & text) const;
    [[noreturn]] void give_up() const;
    Token open_end(LlgMatcher * m, bool & is_certain);
    template <typename F>
    void behind(const Tokens & path, F && f);

    const Llguidance & llg_;
    std::shared_ptr<const GrammarVocabulary> vocabulary_;
    Matcher matcher_;
    Matcher drafts_;    // null where it gave up
    Tokens to_drafts_;  // accepted, and not yet read by drafts_
    int n_slow_ = 0;    // slow calls of drafts_ in a row
    int n_rest_ = 0;    // calls of drafts_ that are left out
    bool has_mask_ = false;
    std::vector<uint32_t> bits_;
    std::vector<bool> allowed_;
};

// Error(grammar) for a text that no matcher can be made of, whatever the vocabulary.
void check_grammar(const std::string & text);

}  // namespace eaglecpp
