// SPDX-License-Identifier: MIT
#include "algo/acceptance.h"

#include <cmath>
#include <utility>

#include "base/error.h"

namespace eaglecpp {

// --- acceptance model -----------------------------------------------------------------------------------------------

namespace {
constexpr double x_max = 8.0;  // limit of |logit| of a drafter probability
constexpr double slope_min = 0.1, slope_max = 1.5;
constexpr double slope_prior = 40.0;  // information of the prior slopes: about fifty labels of a confident drafter
constexpr double clean_min = -8.0;    // lower limit of the log-probability before the noise
constexpr double text_max = 7.0;      // limit of |text term|
// Priors of the term for positions after tokens that were not the drafter's first choice: after one such token, and
// after several. A parallel drafter proposes the right token at 22 % of these positions, and at 65 to 84 % of all other
// positions (rmagur1203/vllm-ddtree docs/DDTREE-FINDINGS-EN.md).
constexpr double parallel_starts[] = {-1.5, -2.0};
constexpr double confidence_start = 0.3;
constexpr double drift = 0.01;  // variance that a text term gains per label
constexpr double variance_max = 2.0;
constexpr double text_spread = 0.5;      // variance of text terms from text to text
constexpr double handed_over_max = 0.4;  // maximum part of a text term that moves into the drafter's terms

double sigmoid(double z) {
    return 1.0 / (1.0 + std::exp(-z));
}

// Returns the logit of exp(logp) / left, clipped. NaN counts as very unlikely.
double logit_of(float logp, double left) {
    if (!(logp > -60.0f)) return -x_max;
    const double q = std::min(std::exp((double)std::min(logp, 0.0f)) / left, 1.0);
    if (q >= 1.0) return x_max;
    return std::clamp(std::log(q / (1.0 - q)), -x_max, x_max);
}

// Returns the drafter's probability that remains for the siblings after this one.
double left_after(float logp, double left) {
    const double q = logp > -60.0f ? std::exp((double)std::min(logp, 0.0f)) : 0.0;
    return std::max(left - q, 1e-6);
}

double information_of(double a) {
    return std::max(0.01, a * (1.0 - a));
}

}  // namespace

RequestKind request_kind(double temperature, bool has_grammar, bool is_coupled) {
    if (is_coupled) {
        if (has_grammar) return RequestKind::coupled_constrained;
        if (temperature <= 0.65) return RequestKind::coupled_cool;
        return temperature <= 0.9 ? RequestKind::coupled_warm : RequestKind::coupled_hot;
    }
    if (has_grammar) return RequestKind::constrained;
    if (!(temperature > 0.0)) return RequestKind::greedy;
    return temperature <= 0.7 ? RequestKind::sampled : RequestKind::hot;
}

void TextTerm::learn(double error, double information) {
    variance = std::min(variance + drift, variance_max);
    variance = 1.0 / (1.0 / variance + information);
    value = std::clamp(value + variance * error, -text_max, text_max);
}

double TextTerm::hand_over(double information) const {
    const double variance_own = 2.0 / (1.0 + information / 8.0);
    const double gain = variance_own / (variance_own + text_spread + variance);
    return std::clamp(gain * value, -handed_over_max, handed_over_max);
}

// Returns true if labels of this kind of request describe the drafter in general. A grammar restricts the target's
// tokens, so labels of a request with a grammar describe only this request.
static bool is_lasting(RequestKind kind) {
    return kind != RequestKind::constrained && kind != RequestKind::coupled_constrained;
}

AcceptanceModel::AcceptanceModel() {
    for (int k = 0; k < n_request_kinds; ++k) classes_.emplace_back(k >= (int)RequestKind::coupled_cool);
}

// Sets the priors. Published fits of the same form have slopes of 0.44 to 0.83 and negative offsets (vllm-project/vllm
// #52228). The priors of coupled requests are averages over what three drafters taught at temperatures 0.5 to 1.0
// (docs/research/coupled-sampling.md).
AcceptanceModel::Class::Class(bool is_coupled) {
    const double rank_starts[2][n_rank_terms] = {{-0.4, -0.4, -0.4}, {0.4, 0.0, -0.2}};
    first.slope.value = is_coupled ? 0.42 : 0.65;
    later.slope.value = is_coupled ? 0.25 : 0.65;
    if (is_coupled) first.clean.value = 0.37, later.clean.value = 0.42;
    first.confidence.value = confidence_start;
    for (int d = 0; d < n_depths; ++d) {
        first.offset[d].value = is_coupled ? 0.7 - 0.05 * std::min(d, 6) : -0.3 - 0.1 * std::min(d, 6);
    }
    for (int r = 0; r < n_rank_terms; ++r) later.offset[r].value = rank_starts[is_coupled][r];
}

std::vector<AcceptanceModel::Weight *> AcceptanceModel::Class::weights() {
    std::vector<Weight *> out{&first.slope, &later.slope, &first.clean, &later.clean};
    for (Side * side : {&first, &later}) {
        for (Weight & w : side->offset) out.push_back(&w);
    }
    for (Side * side : {&first, &later}) {
        out.push_back(&side->confidence);
        for (Weight & w : side->deviated) out.push_back(&w);
    }
    return out;
}

// Sets the priors so that the model returns `rate` where logit(q) = logit(rate). The reason: a drafter's probability of
// its best token is about equal to the rate at which the target accepts this token. Coupled requests keep their priors,
// because their q contains the noise: drafters of different rates teach nearly the same offsets.
void AcceptanceModel::expect(const std::vector<float> & rates, bool is_parallel) {
    for (Class & c : classes_) {
        for (int i = 0; is_parallel && i < n_deviated; ++i) {
            Weight & w = c.first.deviated[i];
            if (w.information == 0.0) w.value = parallel_starts[i];
        }
    }
    if (rates.empty()) return;
    const Class plain(false);
    for (int d = 0; d < n_depths; ++d) {
        const double rate = std::clamp((double)rates[std::min((size_t)d, rates.size() - 1)], 0.05, 0.95);
        const double start = (1.0 - plain.first.slope.value) * std::log(rate / (1.0 - rate));
        for (int k = 0; k < (int)RequestKind::coupled_cool; ++k) {
            Weight & w = classes_[k].first.offset[d];
            if (w.information == 0.0) w.value += start - plain.first.offset[d].value;
        }
    }
}

void AcceptanceModel::Weight::learn(double error, double info, double x, double memory, double prior) {
    information = memory * information + info * x * x;
    value += error * x / (information + prior);
}

// Returns the inputs of the model for one child at this site.
AcceptanceModel::Signs AcceptanceModel::signs_of(const Candidate & child, double left, const DraftSite & site, int i) {
    const float logq = child.logq;
    const double confidence = std::isfinite(child.confidence) ? (double)child.confidence : 0.0;
    return {logit_of(child.logp, left), logq > clean_min ? std::min((double)logq, 0.0) : clean_min,
            std::clamp(confidence, -x_max, x_max),
            i == 0 ? std::clamp(site.depth - 1, 0, n_depths - 1) : std::min(i - 1, n_rank_terms - 1),
            std::min(site.n_deviations, n_deviated) - 1};
}

double AcceptanceModel::side_logit(const Side & side, const TextTerm & text, const Signs & s) {
    const double deviated = s.deviated < 0 ? 0.0 : side.deviated[s.deviated].value;
    return side.slope.value * s.x + side.clean.value * s.clean + side.confidence.value * s.confidence + deviated +
           side.offset[s.offset].value + text.value;
}

// Moves a part of the text terms into the drafter's own terms, because this part describes the drafter in general. Text
// terms learn first, so without this step every new text would start from the same wrong guess.
void AcceptanceModel::end_text(RequestKind kind, TextState & text) {
    Class & c = classes_[(int)kind];
    if (is_lasting(kind)) {
        for (auto [side, term] : {std::pair(&c.first, &text.first), std::pair(&c.later, &text.later)}) {
            const double part = term->hand_over(side->offset[0].information);
            for (Weight & w : side->offset) w.value += part;
        }
    }
    text = {};
}

void AcceptanceModel::predict(RequestKind kind, const TextState & text, const DraftSite & site,
                              const Candidate * children, int n, double * a) const {
    const Class & c = classes_[(int)kind];
    double left_q = 1.0, left_a = 1.0;
    for (int i = 0; i < n; ++i) {
        const Signs signs = signs_of(children[i], left_q, site, i);
        const Side & side = i == 0 ? c.first : c.later;
        const TextTerm & term = i == 0 ? text.first : text.later;
        a[i] = left_a * sigmoid(side_logit(side, term, signs));
        left_a -= a[i];
        left_q = left_after(children[i].logp, left_q);
    }
}

void AcceptanceModel::learn(RequestKind kind, TextState & text, const DraftSite & site, const Candidate * children,
                            int n, int matched) {
    Class & c = classes_[(int)kind];
    double left_q = 1.0;
    for (int i = 0; i < n; ++i) {
        const Signs s = signs_of(children[i], left_q, site, i);
        Side & side = i == 0 ? c.first : c.later;
        TextTerm & term = i == 0 ? text.first : text.later;
        const double a = sigmoid(side_logit(side, term, s));
        const double error = (matched == i) - a, info = information_of(a);
        if (is_lasting(kind)) {
            side.slope.learn(error, info, s.x, 0.9995, slope_prior);
            side.slope.value = std::clamp(side.slope.value, slope_min, slope_max);
            side.clean.learn(error, info, s.clean, 0.9995, slope_prior);
            side.clean.value = std::clamp(side.clean.value, 0.0, slope_max);
            side.confidence.learn(error, info, s.confidence, 0.9995, slope_prior);
            side.confidence.value = std::clamp(side.confidence.value, -slope_max, slope_max);
            if (s.deviated >= 0) side.deviated[s.deviated].learn(error, info, 1.0, 0.999, 25.0);
            side.offset[s.offset].learn(error, info, 1.0, side.memory, 25.0);
        }
        term.learn(error, info);
        n_labels_ += i == 0;
        if (matched == i) break;  // later siblings were not compared with the target
        left_q = left_after(children[i].logp, left_q);
    }
}

LearnedState AcceptanceModel::state() const {
    LearnedState out;
    for (int k = 0; k < n_request_kinds; ++k) {
        Class c = classes_[k];
        std::vector<double> & values = out[strf("class%d", k)];
        for (const Weight * w : c.weights()) values.insert(values.end(), {w->value, w->information});
    }
    return out;
}

bool AcceptanceModel::set_state(const LearnedState & state) {
    AcceptanceModel loaded = *this;
    for (int k = 0; k < n_request_kinds; ++k) {
        const auto found = state.find(strf("class%d", k));
        const std::vector<Weight *> weights = loaded.classes_[k].weights();
        if (found == state.end() || found->second.size() != 2 * weights.size()) return false;
        for (size_t i = 0; i < weights.size(); ++i) {
            *weights[i] = {found->second[2 * i], found->second[2 * i + 1]};
            const bool fits = std::fabs(weights[i]->value) <= 20.0 && weights[i]->information >= 0.0 &&
                              weights[i]->information <= 1e6;
            if (!fits) return false;
        }
        for (const Side * s : {&loaded.classes_[k].first, &loaded.classes_[k].later}) {
            if (!(s->slope.value >= slope_min && s->slope.value <= slope_max)) return false;
            if (!(s->clean.value >= 0.0 && s->clean.value <= slope_max)) return false;
            if (!(std::fabs(s->confidence.value) <= slope_max)) return false;
        }
    }
    *this = loaded;
    return true;
}

// --- text acceptance ------------------------------------------------------------------------------------------------

namespace {
// Pairs of a match length and the prior probability from this length on. The probabilities were counted in greedy
// answers of small models: copying tasks, questions about documents, and continued code and prose.
constexpr std::pair<int, double> starts[] = {{0, 0.02}, {1, 0.05}, {2, 0.4},   {3, 0.45},  {4, 0.5},
                                             {5, 0.6},  {7, 0.75}, {10, 0.85}, {16, 0.92}, {32, 0.95}};
// Random sampling reduces the logit by less_short for matches below n_short tokens, and by less_long for longer
// matches.
constexpr double less_short = 1.2, less_long = 0.5;
constexpr int n_short = 5;

constexpr double forced_start = 0.97;

double text_chance(RequestKind kind, const TextTerm & hits, int n_match) {
    double a = 0.0;
    for (const auto & [length, chance] : starts) {
        if (n_match >= length) a = chance;
    }
    const double less = kind == RequestKind::greedy ? 0.0 : n_match <= n_short ? less_short : less_long;
    return sigmoid(std::log(a / (1.0 - a)) - less + hits.value);
}

double chain_chance(RequestKind kind, const ChainTerms & terms, const TextDraft & draft, int i) {
    return i < draft.n_forced ? forced_chance(terms, draft.is_certain[i])
                              : text_chance(kind, terms.hits, draft.n_match_before(i));
}
}  // namespace

float forced_chance(const ChainTerms & terms, bool is_certain) {
    return is_certain ? 1.0f : (float)sigmoid(std::log(forced_start / (1.0 - forced_start)) + terms.forced.value);
}

void predict_text(RequestKind kind, const ChainTerms & terms, const TextDraft & draft, std::vector<float> & a) {
    a.clear();
    for (int i = 0; i < draft.size(); ++i) a.push_back((float)chain_chance(kind, terms, draft, i));
}

void learn_text(RequestKind kind, ChainTerms & terms, const TextDraft & draft, const Tokens & tokens) {
    for (int i = 0; i < std::min(draft.size(), (int)tokens.size()); ++i) {
        const bool came = draft.tokens[i] == tokens[i];
        if (i < draft.n_forced && draft.is_certain[i]) continue;
        const double a = chain_chance(kind, terms, draft, i);
        (i < draft.n_forced ? terms.forced : terms.hits).learn(came - a, information_of(a));
        if (!came) return;
    }
}

// --- mean chances ---------------------------------------------------------------------------------------------------

static constexpr float revisit = 0.03f;  // drift towards the mean of the step above, per node of that step

// Untried deeper steps are assumed to be like this step: while a deeper step is untried, its mean drifts towards the
// mean of this step. Without the drift, a step would never be tried again if its first try was at a bad moment.
void MeanChances::learn(int depth, const double * a, int n, float p) {
    const int d = row(depth);
    n_seen_[d] = std::min(n_seen_[d] + 1, 9);
    const float rate = 1.0f / (float)(n_seen_[d] + 1) * std::max(p, 0.1f);
    for (int i = 0; i < n; ++i) means_[d][i] += rate * ((float)a[i] - means_[d][i]);
    for (int deeper = d + 1; deeper < n_depths; ++deeper) {
        const float pull = n_seen_[deeper] == 0 ? 1.0f : revisit;
        for (int r = 0; r < n_ranks; ++r) means_[deeper][r] += pull * (means_[d][r] - means_[deeper][r]);
        if (n_seen_[deeper] > 0) return;
    }
}

}  // namespace eaglecpp
