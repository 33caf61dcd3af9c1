// SPDX-License-Identifier: MIT
// Finds the tokens that a grammar allows after the text, with llguidance's matchers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "algo/text.h"
#include "base/types.h"
#include "grammar/llguidance.h"

namespace eaglecpp {

// A vocabulary in llguidance's form. Creating one with 49,000 tokens takes 0.2 s of processor time.
class GrammarVocabulary : Pinned {
  public:
    using Tokenize = std::function<Tokens(const std::string &)>;

    // pieces: bytes of each token. is_end: true for tokens that end a text. tokenize: function for valid UTF-8, called
    // in any thread.
    GrammarVocabulary(const std::vector<std::string> & pieces, const std::vector<bool> & is_end, Tokenize tokenize);
    ~GrammarVocabulary();

    int size() const { return (int)is_end_.size(); }
    bool is_end(Token token) const { return is_end_[token]; }
    // Returns the bytes of a token in a text.
    const std::string & piece(Token token) const { return pieces_[token]; }
    const LlgTokenizer * get() const { return tokenizer_; }

  private:
    std::vector<bool> is_end_;
    std::vector<std::string> pieces_;
    Tokenize tokenize_;
    LlgTokenizer * tokenizer_;
};

// Matches a text and its drafts with a grammar. The text and its drafts have separate matchers. Checking drafts never
// changes the results or the limits of the text's matcher, so a text is the same with and without drafting.
class GrammarMatcher {
  public:
    // text: a grammar in llguidance's variant of Lark. Error(grammar) if the grammar is invalid.
    GrammarMatcher(const std::string & text, std::shared_ptr<const GrammarVocabulary> vocabulary);

    // Returns true if the grammar allows the token next. allows(), allowed() and accept() raise Error(grammar) if the
    // matcher takes too many steps.
    bool allows(Token token);

    // Returns whether the grammar allows each token id next. The result is valid until the next call.
    const std::vector<bool> & allowed();

    // Appends a token to the text. End tokens have no effect. Error(grammar) if the grammar does not allow the token.
    void accept(Token token);

    // Returns whether each of `tokens` may follow the text and `path`. All results are false if the grammar forbids
    // `path`, or if the drafts' matcher failed or is slow.
    std::vector<bool> allows_behind(const Tokens & path, const Tokens & tokens);

    // Returns up to n_max tokens that must follow the text and `path`. They are the usual tokenization of the forced
    // text.
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
    Matcher drafts_;    // the matcher of drafts; null after it failed
    Tokens to_drafts_;  // accepted tokens that drafts_ has not read yet
    int n_slow_ = 0;    // number of consecutive slow calls of drafts_
    int n_rest_ = 0;    // number of calls of drafts_ to skip
    bool has_mask_ = false;
    std::vector<uint32_t> bits_;
    std::vector<bool> allowed_;
};

// Raises Error(grammar) if the text is invalid for every vocabulary.
void check_grammar(const std::string & text);

}  // namespace eaglecpp
