// SPDX-License-Identifier: MIT
#include "algo/acceptance.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/state_text.h"

namespace eaglecpp {

// --- acceptance model -----------------------------------------------------------------------------------------------

namespace {
constexpr double x_max = 8.0;  // |logit| of a drafter probability is clipped here
constexpr double slope_min = 0.1, slope_max = 1.5;
constexpr double slope_prior = 40.0;  // information of the prior slopes: some fifty labels of a sure drafter
constexpr double clean_min = -8.0;    // log-probabilities before the noise are clipped here
constexpr double text_max = 7.0;      // |text term|
constexpr double pull = 0.995;        // per label: no text may lock itself off for good
constexpr double drift = 0.01;        // variance a text gains per label
constexpr double variance_max = 2.0;
constexpr double text_spread = 0.5;         // variance of text terms over texts
constexpr double handed_over_most = 0.4;    // of a text term, when the text ends
constexpr double slack = 0.5, alarm = 5.0;  // CUSUM, in standard deviations

double sigmoid(double z) {
    return 1.0 / (1.0 + std::exp(-z));
}

// logit of exp(logp) / left, clipped; a logp that is not a number counts as "hardly"
double logit_of(float logp, double left) {
    if (!(logp > -60.0f)) return -x_max;
    const double q = std::min(std::exp((double)std::min(logp, 0.0f)) / left, 1.0);
    if (q >= 1.0) return x_max;
    return std::clamp(std::log(q / (1.0 - q)), -x_max, x_max);
}

// drafter probability not taken by the siblings before
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
    value = std::clamp(pull * (value + variance * error), -text_max, text_max);
    const double z = std::clamp(error / std::sqrt(information), -3.0, 3.0);
    rise = std::max(0.0, rise + z - slack);
    fall = std::max(0.0, fall - z - slack);
    if (rise > alarm || fall > alarm) {
        variance = variance_max;
        rise = fall = 0.0;
    }
}

double TextTerm::hand_over(double information) const {
    const double variance_own = 2.0 / (1.0 + information / 8.0);
    const double gain = variance_own / (variance_own + text_spread + variance);
    return std::clamp(gain * value, -handed_over_most, handed_over_most);
}

void Reliability::add(double predicted, bool accepted) {
    const int bin = std::clamp((int)(predicted * 10.0), 0, 9);
    n_[bin] += 1.0;
    predicted_[bin] += predicted;
    accepted_[bin] += accepted;
}

double Reliability::n_labels() const {
    double n = 0.0;
    for (double v : n_) n += v;
    return n;
}

double Reliability::calibration_error() const {
    const double n = n_labels();
    double sum = 0.0;
    for (int i = 0; i < 10; ++i) sum += std::fabs(predicted_[i] - accepted_[i]);
    return n > 0.0 ? sum / n : 0.0;
}

std::array<Reliability::Bin, 10> Reliability::bins() const {
    std::array<Bin, 10> out{};
    for (int i = 0; i < 10; ++i) {
        if (n_[i] > 0.0) out[i] = {n_[i], predicted_[i] / n_[i], accepted_[i] / n_[i]};
    }
    return out;
}

static bool is_coupled(int kind) {
    return kind >= (int)RequestKind::coupled_cool;
}

// A grammar changes what the target may say, which tells nothing lasting about the drafter.
static bool is_lasting(RequestKind kind) {
    return kind != RequestKind::constrained && kind != RequestKind::coupled_constrained;
}

AcceptanceModel::AcceptanceModel() {
    for (int k = 0; k < n_request_kinds; ++k) classes_.emplace_back(is_coupled(k));
}

// Priors: published fits of the same shape have slopes of 0.44 to 0.83 and negative offsets (vllm-project/vllm #52228).
// Those of coupled requests lie between fits of two drafters at temperatures 0.5 to 1.0 with and without top-p and
// min-p (docs/research/coupled-sampling.md).
AcceptanceModel::Class::Class(bool is_coupled) {
    if (is_coupled) {
        slope_first.value = 0.6;
        slope_later.value = 0.5;
        clean_first.value = 0.35;
        clean_later.value = 0.3;
        for (int d = 0; d < n_depths; ++d) depth[d].value = 0.7 - 0.05 * std::min(d, 6);
        rank[0].value = 0.5;
        rank[1].value = 0.2;
        rank[2].value = -0.2;
        return;
    }
    slope_first.value = slope_later.value = 0.65;
    for (int d = 0; d < n_depths; ++d) depth[d].value = -0.3 - 0.1 * std::min(d, 6);
    rank[0].value = -0.4;
    rank[1].value = -0.4;
    rank[2].value = -0.4;
}

// A drafter's probability of its best token is about as large as its rate of acceptance, so that a chance equal to the
// rate is wanted where logit(q) = logit(rate). Noise shifts both by the same, roughly.
void AcceptanceModel::expect(const std::vector<float> & rates) {
    if (rates.empty()) return;
    const Class plain(false);
    for (int d = 0; d < n_depths; ++d) {
        const double rate = std::clamp((double)rates[std::min((size_t)d, rates.size() - 1)], 0.05, 0.95);
        const double start = (1.0 - plain.slope_first.value) * std::log(rate / (1.0 - rate));
        for (Class & c : classes_) {
            if (c.depth[d].information == 0.0) c.depth[d].value += start - plain.depth[d].value;
        }
    }
}

void AcceptanceModel::Weight::learn(double error, double info, double x, double memory, double prior) {
    information = memory * information + info * x * x;
    value += error * x / (information + prior);
}

AcceptanceModel::Signs AcceptanceModel::signs_of(const Candidate & child, double left) {
    const float logq = child.logq;
    return {logit_of(child.logp, left), logq > clean_min ? std::min((double)logq, 0.0) : clean_min};
}

double AcceptanceModel::first_logit(const Class & c, const TextState & text, int depth, const Signs & s) const {
    return c.slope_first.value * s.x + c.clean_first.value * s.clean +
           c.depth[std::clamp(depth - 1, 0, n_depths - 1)].value + text.first.value;
}

double AcceptanceModel::later_logit(const Class & c, const TextState & text, int rank, const Signs & s) const {
    return c.slope_later.value * s.x + c.clean_later.value * s.clean +
           c.rank[std::min(rank - 2, n_rank_terms - 1)].value + text.later.value;
}

// Part of what the text at hand taught is true of the drafter: text terms learn first and would keep it to themselves,
// and every new text would start from the same wrong guess.
void AcceptanceModel::end_text(RequestKind kind, TextState & text) {
    Class & c = classes_[(int)kind];
    if (is_lasting(kind)) {
        const double first = text.first.hand_over(c.depth[0].information);
        const double later = text.later.hand_over(c.rank[0].information);
        for (Weight & w : c.depth) w.value += first;
        for (Weight & w : c.rank) w.value += later;
        text.first.value -= first;
        text.later.value -= later;
    }
    text = {};
}

void AcceptanceModel::predict(RequestKind kind, const TextState & text, int depth, const Candidate * children, int n,
                              double * a) const {
    const Class & c = classes_[(int)kind];
    double left_q = 1.0, left_a = 1.0;
    for (int i = 0; i < n; ++i) {
        const Signs signs = signs_of(children[i], left_q);
        const double z = i == 0 ? first_logit(c, text, depth, signs) : later_logit(c, text, i + 1, signs);
        a[i] = left_a * sigmoid(z);
        left_a -= a[i];
        left_q = left_after(children[i].logp, left_q);
    }
}

void AcceptanceModel::learn(RequestKind kind, TextState & text, int depth, const Candidate * children, int n,
                            int matched) {
    double left_q = 1.0;
    for (int i = 0; i < n; ++i) {
        const Signs signs = signs_of(children[i], left_q);
        if (i == 0) {
            learn_first(kind, text, depth, signs, matched == 0);
        } else {
            learn_later(kind, text, i + 1, signs, matched == i);
        }
        if (matched == i) break;  // the siblings after it had no chance to show anything
        left_q = left_after(children[i].logp, left_q);
    }
}

void AcceptanceModel::learn_first(RequestKind kind, TextState & text, int depth, const Signs & s, bool accepted) {
    Class & c = classes_[(int)kind];
    const double a = sigmoid(first_logit(c, text, depth, s));
    const double error = accepted - a, info = information_of(a);
    c.reliability.add(a, accepted);
    if (is_lasting(kind)) {
        c.slope_first.learn(error, info, s.x, 0.9995, slope_prior);
        c.slope_first.value = std::clamp(c.slope_first.value, slope_min, slope_max);
        c.clean_first.learn(error, info, s.clean, 0.9995, slope_prior);
        c.clean_first.value = std::clamp(c.clean_first.value, 0.0, slope_max);
        c.depth[std::clamp(depth - 1, 0, n_depths - 1)].learn(error, info, 1.0, 0.998, 25.0);
    }
    text.first.learn(error, info);
}

void AcceptanceModel::learn_later(RequestKind kind, TextState & text, int rank, const Signs & s, bool accepted) {
    Class & c = classes_[(int)kind];
    const double a = sigmoid(later_logit(c, text, rank, s));
    const double error = accepted - a, info = information_of(a);
    if (is_lasting(kind)) {
        c.slope_later.learn(error, info, s.x, 0.9995, slope_prior);
        c.slope_later.value = std::clamp(c.slope_later.value, slope_min, slope_max);
        c.clean_later.learn(error, info, s.clean, 0.9995, slope_prior);
        c.clean_later.value = std::clamp(c.clean_later.value, 0.0, slope_max);
        c.rank[std::min(rank - 2, n_rank_terms - 1)].learn(error, info, 1.0, 0.999, 25.0);
    }
    text.later.learn(error, info);
}

std::string AcceptanceModel::to_text(const std::string & key) const {
    std::vector<StateLine> lines;
    for (int k = 0; k < n_request_kinds; ++k) {
        StateLine line{strf("class%d", k), {}};
        const auto put = [&](const Weight & w) {
            line.values.push_back(w.value);
            line.values.push_back(w.information);
        };
        put(classes_[k].slope_first);
        put(classes_[k].slope_later);
        put(classes_[k].clean_first);
        put(classes_[k].clean_later);
        for (const Weight & w : classes_[k].depth) put(w);
        for (const Weight & w : classes_[k].rank) put(w);
        lines.push_back(std::move(line));
    }
    return write_state(state_kind, key, lines);
}

bool AcceptanceModel::from_text(const std::string & text, const std::string & key) {
    const auto lines = read_state(text, state_kind, key);
    if (!lines || (int)lines->size() != n_request_kinds) return false;
    AcceptanceModel loaded;
    for (int k = 0; k < n_request_kinds; ++k) {
        const std::vector<double> & v = (*lines)[k].values;
        if ((*lines)[k].name != strf("class%d", k) || (int)v.size() != 2 * (4 + n_depths + n_rank_terms)) return false;
        for (size_t i = 0; i < v.size(); i += 2) {
            if (std::fabs(v[i]) > 20.0 || v[i + 1] < 0.0 || v[i + 1] > 1e6) return false;
        }
        size_t i = 0;
        const auto take = [&](Weight & w) { w = {v[i], v[i + 1]}, i += 2; };
        take(loaded.classes_[k].slope_first);
        take(loaded.classes_[k].slope_later);
        take(loaded.classes_[k].clean_first);
        take(loaded.classes_[k].clean_later);
        for (Weight * w : {&loaded.classes_[k].slope_first, &loaded.classes_[k].slope_later}) {
            if (w->value < slope_min || w->value > slope_max) return false;
        }
        for (Weight * w : {&loaded.classes_[k].clean_first, &loaded.classes_[k].clean_later}) {
            if (w->value < 0.0 || w->value > slope_max) return false;
        }
        for (Weight & w : loaded.classes_[k].depth) take(w);
        for (Weight & w : loaded.classes_[k].rank) take(w);
    }
    *this = loaded;
    return true;
}

// --- text acceptance ------------------------------------------------------------------------------------------------

namespace {
constexpr double memory = 0.999, prior_information = 4.0;

// Chances to begin with, by length of the match: 0, 1, 2, 3, 4, 5, 7, 10, 16, 32. Counted in greedy answers of small
// models to requests for copies, to questions about documents, and in code and prose they went on with.
constexpr double prior_longest[] = {0.02, 0.05, 0.4, 0.45, 0.5, 0.6, 0.75, 0.85, 0.92, 0.95};
constexpr double prior_resumed[] = {0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.88, 0.9, 0.93, 0.95};
constexpr double less_short = 1.2, less_long = 0.5;  // where tokens are drawn at random: logits less
constexpr int n_short = 6;                           // of the lengths above

double logit(double a) {
    return std::log(a / (1.0 - a));
}
}  // namespace

TextAcceptance::TextAcceptance() {
    for (int k = 0; k < n_request_kinds; ++k) {
        Weights & weights = weights_[k];
        for (int i = 0; i < n_lengths; ++i) {
            const double less = k == (int)RequestKind::greedy ? 0.0 : i < n_short ? less_short : less_long;
            weights[(int)TextDraft::Source::longest][i].value = logit(prior_longest[i]) - less;
            weights[(int)TextDraft::Source::resumed][i].value = logit(prior_resumed[i]) - less;
        }
    }
}

int TextAcceptance::length_of(int n_match) {
    constexpr int bounds[] = {0, 1, 2, 3, 4, 5, 7, 10, 16, 32};
    int i = 0;
    while (i + 1 < n_lengths && n_match >= bounds[i + 1]) ++i;
    return i;
}

double TextAcceptance::chance(RequestKind kind, const TextTerm & hits, const TextDraft::Node & node) const {
    return sigmoid(weights_[(int)kind][(int)node.source][length_of(node.n_match)].value + hits.value);
}

void TextAcceptance::predict(RequestKind kind, const TextTerm & hits, const TextDraft & draft,
                             std::vector<float> & a) const {
    a.assign(draft.size(), 1.0f);
    for (int i = 1; i < draft.size(); ++i) {
        double left = 1.0;  // what the siblings before leave over
        for (int j = 1; j < i; ++j) {
            if (draft.nodes[j].parent == draft.nodes[i].parent) left -= a[j];
        }
        a[i] = (float)std::min(chance(kind, hits, draft.nodes[i]), std::max(left, 0.0));
    }
}

void TextAcceptance::learn(RequestKind kind, TextTerm & hits, const TextDraft & draft, const Tokens & tokens) {
    int at = 0;
    for (Token token : tokens) {
        int next = -1;
        bool is_leaf = true;
        for (int i = at + 1; i < draft.size(); ++i) {
            if (draft.nodes[i].parent != at) continue;
            const bool came = draft.nodes[i].token == token;
            learn_one(kind, hits, draft.nodes[i], came);
            is_leaf = false;
            if (came) next = i;
        }
        if (is_leaf || next < 0) return;
        at = next;
    }
}

void TextAcceptance::learn_one(RequestKind kind, TextTerm & hits, const TextDraft::Node & node, bool came) {
    const double a = chance(kind, hits, node), error = came - a, information = std::max(0.01, a * (1.0 - a));
    reliability_.add(a, came);
    Weight & w = weights_[(int)kind][(int)node.source][length_of(node.n_match)];
    w.information = memory * w.information + information;
    w.value = std::clamp(w.value + error / (w.information + prior_information), -8.0, 8.0);
    hits.learn(error, information);
}

std::string TextAcceptance::to_text(const std::string & key) const {
    std::vector<StateLine> lines;
    for (int k = 0; k < n_request_kinds; ++k) {
        StateLine line{strf("text%d", k), {}};
        for (const auto & of_source : weights_[k]) {
            for (const Weight & w : of_source) {
                line.values.push_back(w.value);
                line.values.push_back(w.information);
            }
        }
        lines.push_back(std::move(line));
    }
    return write_state(state_kind, key, lines);
}

// In older files the row of resumed copies is the third of three or five.
bool TextAcceptance::from_text(const std::string & text, const std::string & key) {
    const auto lines = read_state(text, state_kind, key);
    if (!lines || (int)lines->size() != n_request_kinds) return false;
    std::array<Weights, n_request_kinds> loaded = TextAcceptance().weights_;
    for (int k = 0; k < n_request_kinds; ++k) {
        const std::vector<double> & v = (*lines)[k].values;
        const int n_row = 2 * n_lengths, n_rows = (int)v.size() / n_row;
        const bool fits = (int)v.size() == n_rows * n_row && (n_rows == n_sources || n_rows == 3 || n_rows == 5);
        if ((*lines)[k].name != strf("text%d", k) || !fits) return false;
        for (int source = 0; source < n_sources; ++source) {
            const double * row = &v[(source == 0 || n_rows == n_sources ? source : 2) * n_row];
            for (int i = 0; i < n_lengths; ++i) {
                const Weight w{row[2 * i], row[2 * i + 1]};
                if (std::fabs(w.value) > 8.0 || w.information < 0.0 || w.information > 1e6) return false;
                loaded[k][source][i] = w;
            }
        }
    }
    weights_ = loaded;
    return true;
}

// --- mean chances ---------------------------------------------------------------------------------------------------

static constexpr float revisit = 0.03f;  // per level above it

// Deeper levels are expected to be like this one until they were looked at, and a little more so as long as they are
// not: a level that was never tried, or once in a bad moment, would never be tried again.
void MeanChances::learn(int depth, const double * a, int n, float p) {
    const int d = row(depth);
    const float rate = std::max(0.1f, 1.0f / (float)(++n_seen_[d] + 1)) * std::max(p, 0.1f);
    for (int i = 0; i < n; ++i) means_[d][i] += rate * ((float)a[i] - means_[d][i]);
    for (int deeper = d + 1; deeper < n_depths; ++deeper) {
        const float pull = n_seen_[deeper] == 0 ? 1.0f : revisit;
        for (int r = 0; r < n_ranks; ++r) means_[deeper][r] += pull * (means_[d][r] - means_[deeper][r]);
        if (n_seen_[deeper] > 0) return;
    }
}

}  // namespace eaglecpp
