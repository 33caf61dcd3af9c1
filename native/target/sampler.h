// SPDX-License-Identifier: MIT
// The sampler with the user's settings: a grammar, then llama.cpp's samplers in llama.cpp's order. Call sample() and
// accept() once per emitted token, in the order of the text, because the random state depends only on the emitted
// tokens.
//
// With rng "coupled", our own code draws the token: the token with the largest sum of logit and noise. The noise
// depends on seed, position and token (algo/noise.h), so that a drafter can add the same noise. This draw has no random
// state. XTC's random decision uses the same noise. Mirostat draws as in llama.cpp.
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
    std::string rng = "coupled";  // source of randomness: "coupled" | "llama"
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
    bool infill = false;     // llama.cpp's infill sampler, after the truncating samplers
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
    std::string grammar;  // a grammar in llguidance's variant of Lark
    std::vector<std::pair<Token, float>> logit_bias;
};

// The n largest logits of a row, in no particular order.
struct TopLogits {
    const Token * tokens;
    const float * logits;
    int n;
};

class Sampler {
  public:
    // Error(grammar) if the grammar does not parse. Error(value) if a parameter is impossible.
    Sampler(const SamplingParams & params, int n_vocab, const Vocabulary * vocab = nullptr, int n_ctx = 0);

    int n_vocab() const { return n_vocab_; }

    // Adds the prompt to the tokens that the penalties count.
    void accept_prompt(const Tokens & prompt);

    // Samples the token at index `pos` of the text from the target's logits [n_vocab]. The logits stay unchanged.
    // Error(grammar) if the grammar allows no token of the vocabulary or takes too long. Error(value) if the other
    // parameters leave no token.
    Token sample(const float * logits, Pos pos);

    // Samples the token from the largest logits of the row. `top` must have at least n_needed() logits.
    Token sample(const TopLogits & top, Pos pos);

    // Number of largest logits that determine the result of sample(); 0 = all logits.
    int n_needed() const { return plain_greedy_ ? 1 : grammar_ ? 0 : n_first_; }

    // Appends the token to the text. is_own: sample() returned this token. Other tokens (from synthetic acceptance) may
    // violate the grammar, and then the grammar's state stays unchanged. Error(grammar) as for sample().
    void accept(Token token, bool is_own = true);

    // Returns the grammar's matcher for the text; null if there is no grammar.
    GrammarMatcher * grammar() const { return grammar_.get(); }

    // Parameters with which a drafter can predict sample(). Unset if llama.cpp draws the token or if sample() is
    // greedy.
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
    int n_history_;             // maximum number of prompt tokens that the penalties read
    bool plain_greedy_ = true;  // sample() only takes an argmax over the logits
    bool only_draws_ = false;   // sample() only applies a temperature and a coupled draw
    int n_first_ = 0;           // number of largest logits that a coupled chain starts with; 0 = all
    std::optional<CoupledSampling> coupled_;
    float xtc_probability_ = 0.0f;
    llama_sampler_ptr chain_;
    llama_sampler_ptr xtc_;          // XTC of a coupled chain; removes tokens whenever it is applied
    llama_sampler_ptr temperature_;  // temperature of a coupled chain
    std::unique_ptr<GrammarMatcher> grammar_;
    std::vector<llama_token_data> data_;
    Largest largest_;
};

}  // namespace eaglecpp
