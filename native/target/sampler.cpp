// SPDX-License-Identifier: MIT
#include "target/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace eaglecpp {

static constexpr char no_token[] = "samplers removed all tokens, or all are NaN; check logit_bias and the model's file";

static constexpr int n_infill_max = 256;

static void check(bool ok, const char * name, double found, const char * expected) {
    if (!ok) fail(ErrorKind::value, "%s: expected %s, found %g", name, expected, found);
}

Sampler::Sampler(const SamplingParams & p, int n_vocab, const Vocabulary * vocab, int n_ctx) : n_vocab_(n_vocab) {
    check(n_vocab > 0, "n_vocab", n_vocab, "at least 1");
    fail_if(!vocab && (!p.grammar.empty() || p.dry_multiplier != 0.0f), ErrorKind::value,
            "grammars and DRY need a model's vocabulary, but this sampler has only a vocabulary size");
    fail_if(p.rng != "coupled" && p.rng != "llama", ErrorKind::value, "rng: expected coupled or llama, found '%s'",
            p.rng.c_str());
    check(std::isfinite(p.temperature), "temperature", p.temperature, "a finite number");
    check(p.repeat_penalty > 0.0f && std::isfinite(p.repeat_penalty), "repeat_penalty", p.repeat_penalty, "above 0");
    check(p.mirostat >= 0 && p.mirostat <= 2, "mirostat", p.mirostat, "0, 1 or 2");
    check(p.min_keep >= 0, "min_keep", p.min_keep, "0 or more");
    for (const auto & [token, bias] : p.logit_bias) {
        check(token >= 0 && token < n_vocab_, "logit_bias token", token, "an id of the vocabulary");
        check(!std::isnan(bias), "logit_bias", bias, "a number");
    }
    build_chain(p, vocab ? vocab->get() : nullptr, n_ctx);
    if (p.grammar.empty()) return;
    grammar_ = std::make_unique<GrammarMatcher>(p.grammar, vocab->for_grammars());
    plain_greedy_ = false;
}

void Sampler::add(llama_sampler * s) {
    llama_sampler_chain_add(chain_.get(), s);
}

// Builds llama.cpp's chain. The order and the omitted samplers are the same as in llama.cpp's common/sampling.cpp.
void Sampler::build_chain(const SamplingParams & p, const llama_vocab * vocab, int n_ctx) {
    chain_.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    std::vector<llama_logit_bias> biases;
    for (const auto & [token, bias] : p.logit_bias) biases.push_back({token, bias});
    int32_t n_suppress = 0;
    const llama_token * suppress = vocab ? llama_vocab_get_suppress_tokens(vocab, &n_suppress) : nullptr;
    for (int i = 0; i < n_suppress; ++i) biases.push_back({suppress[i], -INFINITY});
    if (!biases.empty()) add(llama_sampler_init_logit_bias(n_vocab_, (int32_t)biases.size(), biases.data()));

    const int repeat_last_n = p.repeat_last_n < 0 ? n_ctx : p.repeat_last_n;
    const int dry_last_n = p.dry_penalty_last_n < 0 ? n_ctx : p.dry_penalty_last_n;
    const bool penalises =
        repeat_last_n > 0 && (p.repeat_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f);
    if (penalises) {
        add(llama_sampler_init_penalties(n_vocab_, repeat_last_n, p.repeat_penalty, p.frequency_penalty,
                                         p.presence_penalty));
    }
    if (p.dry_multiplier != 0.0f && dry_last_n > 0) {
        std::vector<const char *> breakers;
        for (const auto & b : p.dry_sequence_breakers) breakers.push_back(b.c_str());
        add(llama_sampler_init_dry(vocab, p.dry_multiplier, p.dry_base, p.dry_allowed_length, dry_last_n,
                                   breakers.data(), breakers.size()));
    }
    n_history_ = std::max(penalises ? repeat_last_n : 0, p.dry_multiplier != 0.0f ? dry_last_n : 0);
    plain_greedy_ = llama_sampler_chain_n(chain_.get()) == 0 && p.temperature <= 0.0f && p.mirostat == 0;

    if (p.temperature <= 0.0f) {
        add(llama_sampler_init_greedy());
    } else if (p.mirostat != 0) {
        add(llama_sampler_init_temp(p.temperature));
        add(p.mirostat == 1 ? llama_sampler_init_mirostat(n_vocab_, p.seed, p.mirostat_tau, p.mirostat_eta, 100)
                            : llama_sampler_init_mirostat_v2(p.seed, p.mirostat_tau, p.mirostat_eta));
    } else {
        if (p.top_n_sigma >= 0.0f) add(llama_sampler_init_top_n_sigma(p.top_n_sigma));
        if (p.rng == "coupled" && llama_sampler_chain_n(chain_.get()) == 0) n_first_ = p.top_k;
        if (p.top_k > 0) add(llama_sampler_init_top_k(p.top_k));
        if (p.typical_p < 1.0f) add(llama_sampler_init_typical(p.typical_p, p.min_keep));
        if (p.top_p < 1.0f) add(llama_sampler_init_top_p(p.top_p, p.min_keep));
        if (p.min_p > 0.0f) add(llama_sampler_init_min_p(p.min_p, p.min_keep));
        if (p.infill) add_infill(vocab);
        add_draw(p);
    }
}

// Adds llama.cpp's infill sampler, which compares all remaining tokens in pairs and falls back to the end of the text.
void Sampler::add_infill(const llama_vocab * vocab) {
    fail_if(!vocab || (llama_vocab_eot(vocab) < 0 && llama_vocab_eos(vocab) < 0), ErrorKind::value,
            "infill: expected a vocabulary with an end-of-text token, found none");
    add(llama_sampler_init_top_k(n_infill_max));
    add(llama_sampler_init_infill(vocab));
}

// Adds XTC, temperature and the draw. A coupled chain keeps them out of llama.cpp's chain, because XTC's random
// decision and the draw use our noise.
void Sampler::add_draw(const SamplingParams & p) {
    const bool has_xtc = p.xtc_probability > 0.0f;
    const auto temperature = [&] {
        return llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent);
    };
    if (p.rng == "llama") {
        if (has_xtc) add(llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed));
        add(temperature());
        add(llama_sampler_init_dist(p.seed));
        return;
    }
    only_draws_ = llama_sampler_chain_n(chain_.get()) == 0 && !has_xtc && p.dynatemp_range <= 0.0f;
    coupled_ = CoupledSampling{p.seed, p.temperature, p.top_k, p.top_p, p.min_p};
    if (has_xtc) xtc_.reset(llama_sampler_init_xtc(1.0f, p.xtc_threshold, p.min_keep, p.seed));
    xtc_probability_ = p.xtc_probability;
    temperature_.reset(temperature());
}

void Sampler::accept_prompt(const Tokens & prompt) {
    const size_t n = std::min<size_t>(prompt.size(), n_history_);
    for (size_t i = prompt.size() - n; i < prompt.size(); ++i) {
        if (prompt[i] >= 0) llama_sampler_accept(chain_.get(), prompt[i]);
    }
}

// Runs the chain over all candidates. is_bound: runs the chain only over the tokens that the grammar allows.
Token Sampler::apply(const float * logits, bool is_bound, const Noise & noise) {
    if (only_draws_ && !is_bound) return noise.choose(logits, n_vocab_, 1.0 / coupled_->temperature);
    // If the chain starts with top-k, finds these few tokens first, which avoids llama.cpp's copy of all logits. Equal
    // logits are then in index order. llama.cpp's order of equal logits depends on its sort.
    const bool can_cut = n_first_ > 0 && n_first_ < n_vocab_ && !is_bound;
    data_.clear();
    if (can_cut) {
        for (int i : largest_.of(logits, n_vocab_, n_first_)) data_.push_back({i, logits[i], 0.0f});
    }
    const bool is_cut = !data_.empty();
    if (!is_cut) data_.resize(n_vocab_);
    for (int i = 0; i < n_vocab_ && !is_cut; ++i) data_[i] = {i, logits[i], 0.0f};
    llama_token_data_array all = {data_.data(), data_.size(), -1, is_cut};
    if (is_bound) {
        const std::vector<bool> & allowed = grammar_->allowed();
        fail_if(std::find(allowed.begin(), allowed.end(), true) == allowed.end(), ErrorKind::grammar,
                "the grammar allows no token of this vocabulary at this point; loosen the grammar or end it earlier");
        for (int i = 0; i < n_vocab_; ++i) {
            if (!allowed[i]) data_[i].logit = -INFINITY;
        }
    }
    return choose(all, noise);
}

// Returns the token that the chain chooses from the candidates `all`.
Token Sampler::choose(llama_token_data_array & all, const Noise & noise) {
    llama_sampler_apply(chain_.get(), &all);
    if (coupled_) return draw(all, noise);
    fail_if(all.selected < 0 || (size_t)all.selected >= all.size, ErrorKind::value, no_token);
    return all.data[all.selected].id;
}

// Runs the last steps of a coupled chain: XTC, temperature and the draw.
Token Sampler::draw(llama_token_data_array & all, const Noise & noise) {
    if (xtc_ && noise.uniform() < xtc_probability_) llama_sampler_apply(xtc_.get(), &all);
    llama_sampler_apply(temperature_.get(), &all);
    NoisyBest best(noise);
    for (size_t i = 0; i < all.size; ++i) best.add(all.data[i].id, all.data[i].logit);
    if (best.token() < 0) fail(ErrorKind::value, no_token);
    return best.token();
}

Token Sampler::sample(const float * logits, Pos pos) {
    if (plain_greedy_) return argmax(logits, n_vocab_);
    const Noise noise(coupled_ ? coupled_->seed : 0, pos);
    const Token token = apply(logits, /*is_bound=*/false, noise);
    if (!grammar_) return token;
    // Like llama.cpp, this code samples without the grammar first, and samples again if the token does not match. Most
    // sampled tokens match, and checking one token takes far less time than filtering all tokens. The second draw must
    // be independent of the first draw. Otherwise tokens that only enter the top k through the grammar would be too
    // frequent.
    if (grammar_->allows(token)) return token;
    return apply(logits, /*is_bound=*/true, noise.second());
}

Token Sampler::sample(const TopLogits & top, Pos pos) {
    data_.clear();
    for (int i = 0; i < top.n; ++i) data_.push_back({top.tokens[i], top.logits[i], 0.0f});
    std::sort(data_.begin(), data_.end(), [](const llama_token_data & a, const llama_token_data & b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
    const int n = n_needed();
    fail_if(n == 0 || top.n < std::min(n, n_vocab_), ErrorKind::broken,
            "the sampler needs the %d largest logits, found %d", n, top.n);
    data_.resize(std::min(n, top.n));
    if (plain_greedy_) return data_[0].id;
    llama_token_data_array all = {data_.data(), data_.size(), -1, /*sorted=*/true};
    return choose(all, Noise(coupled_ ? coupled_->seed : 0, pos));
}

void Sampler::accept(Token token, bool is_own) {
    if (grammar_ && is_own) grammar_->accept(token);
    llama_sampler_accept(chain_.get(), token);
}

}  // namespace eaglecpp
