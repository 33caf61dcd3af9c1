// SPDX-License-Identifier: MIT
// The user's sampler: llama.cpp's own samplers in llama.cpp's own order, behind a grammar. One call of sample()
// and one of accept() per emitted token, in order: the random state depends on the tokens emitted and on nothing else.
//
// With rng "coupled" the last link, the draw, is ours: the largest logit after adding noise that depends on seed,
// position and token (algo/noise.h), so that a drafter can add the same. It needs no random state at all. XTC's random
// decision is keyed the same way. Mirostat draws as it does in llama.cpp.
#pragma once

#include <llama.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algo/coupled.h"
#include "algo/topk.h"
#include "base/types.h"
#include "grammar/matcher.h"
#include "target/llama_bridge.h"
#include "target/vocabulary.h"

namespace eaglecpp {

struct SamplingParams {
    std::string rng = "coupled";  // "coupled" | "llama": who draws, and from what
    uint32_t seed = 0;
    float temperature = 0.8f;  // <= 0: greedy
    float dynatemp_range = 0.0f;
    float dynatemp_exponent = 1.0f;
    int top_k = 40;             // 0 = off
    float top_p = 0.95f;        // 1 = off
    float min_p = 0.05f;        // 0 = off
    float typical_p = 1.0f;     // 1 = off
    float top_n_sigma = -1.0f;  // < 0 = off
    float xtc_probability = 0.0f;
    float xtc_threshold = 0.1f;
    int min_keep = 0;
    bool infill = false;     // llama.cpp's infill sampler, behind those that truncate
    int repeat_last_n = 64;  // -1 = n_ctx
    float repeat_penalty = 1.0f;
    float frequency_penalty = 0.0f;
    float presence_penalty = 0.0f;
    float dry_multiplier = 0.0f;
    float dry_base = 1.75f;
    int dry_allowed_length = 2;
    int dry_penalty_last_n = -1;  // -1 = n_ctx
    std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
    int mirostat = 0;
    float mirostat_tau = 5.0f;
    float mirostat_eta = 0.1f;
    std::string grammar;  // in llguidance's variant of Lark
    std::vector<std::pair<Token, float>> logit_bias;
};

// Some of a row's logits, in no particular order: the largest n.
struct TopLogits {
    const Token * tokens;
    const float * logits;
    int n;
};

class Sampler {
  public:
    // Error(grammar) when the grammar does not parse, Error(value) on impossible parameters
    Sampler(const SamplingParams & params, int n_vocab, const Vocabulary * vocab = nullptr, int n_ctx = 0);

    int n_vocab() const { return n_vocab_; }

    // lets penalties see the prompt
    void accept_prompt(const Tokens & prompt);

    // The token at index `pos` of the text from the target's logits [n_vocab], which stay untouched. Error(grammar)
    // when the grammar allows no token of the vocabulary or takes too long to find out, Error(value) when what else
    // was asked for leaves none.
    Token sample(const float * logits, Pos pos);

    // The same from the largest logits of the row, of which n_needed() have to be there.
    Token sample(const TopLogits & top, Pos pos);

    // How many of the largest logits are enough to know what sample() gives; 0 = all are needed.
    int n_needed() const { return plain_greedy_ ? 1 : grammar_ ? 0 : n_first_; }

    // The token becomes part of the text. `is_own`: it is what sample() gave; one that is not (synthetic acceptance)
    // may break the grammar, which then stays where it is. Error(grammar) as for sample().
    void accept(Token token, bool is_own = true);

    bool has_grammar() const { return grammar_ != nullptr; }

    // For each of `tokens`: may it follow the text and then `path`? All false where `path` itself may not. Nothing but
    // the grammar is asked, and nothing changes.
    std::vector<bool> grammar_allows(const Tokens & path, const Tokens & tokens) {
        return grammar_ ? grammar_->allows_behind(path, tokens) : std::vector<bool>(tokens.size(), true);
    }
    // The tokens that the grammar forces behind the text and then `path`, at most n_max.
    ForcedRun grammar_forces(const Tokens & path, int n_max) {
        return grammar_ ? grammar_->forced_behind(path, n_max) : ForcedRun();
    }
    // For each token of the vocabulary: may it follow the text?
    std::vector<bool> grammar_mask() {
        return grammar_ ? grammar_->allowed() : std::vector<bool>((size_t)n_vocab_, true);
    }

    // What a drafter needs to propose what sample() will choose; empty if llama.cpp draws or nothing is drawn.
    const std::optional<CoupledSampling> & coupled() const { return coupled_; }

  private:
    void add(llama_sampler * s);
    void build_chain(const SamplingParams & p, const llama_vocab * vocab, int n_ctx);
    void add_infill(const llama_vocab * vocab);
    void add_draw(const SamplingParams & p);
    Token apply(const float * logits, bool is_bound, const Noise & noise);
    Token choose(llama_token_data_array & all, const Noise & noise);
    Token draw(llama_token_data_array & all, const Noise & noise);

    int n_vocab_;
    int n_history_;             // prompt tokens that penalties can see
    bool plain_greedy_ = true;  // nothing but the argmax is asked for
    bool only_draws_ = false;   // nothing but temperature before a coupled draw
    int n_first_ = 0;           // a coupled chain begins with the so many largest logits; 0 = it does not
    std::optional<CoupledSampling> coupled_;
    float xtc_probability_ = 0.0f;
    llama_sampler_ptr chain_;
    llama_sampler_ptr xtc_;          // of a coupled chain; always strikes when applied
    llama_sampler_ptr temperature_;  // of a coupled chain
    std::unique_ptr<GrammarMatcher> grammar_;
    std::vector<llama_token_data> data_;
    Largest largest_;
};

}  // namespace eaglecpp
