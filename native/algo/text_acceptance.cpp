// SPDX-License-Identifier: MIT
#include "algo/text_acceptance.h"

#include <algorithm>
#include <cmath>

#include "algo/state_text.h"
#include "base/error.h"

namespace eaglecpp {

namespace {
constexpr double memory = 0.999, prior_information = 4.0;

// Chances to begin with, by length of the match: 0, 1, 2, 3, 4, 5, 7, 10, 16, 32. Counted in greedy answers of small
// models to requests for copies, to questions about documents, and in code and prose they went on with.
constexpr double prior_longest[] = {0.02, 0.05, 0.4, 0.45, 0.5, 0.6, 0.75, 0.85, 0.92, 0.95};
constexpr double prior_resumed[] = {0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.88, 0.9, 0.93, 0.95};
constexpr double less_short = 1.2, less_long = 0.5;  // where tokens are drawn at random: logits less
constexpr int n_short = 6;                           // of the lengths above

double sigmoid(double z) {
    return 1.0 / (1.0 + std::exp(-z));
}

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
    a.resize(draft.size());
    for (int i = 0; i < draft.size(); ++i) {
        double left = 1.0;  // what the siblings before leave over
        for (int j = 0; j < i; ++j) {
            if (draft.nodes[j].parent == draft.nodes[i].parent) left -= a[j];
        }
        a[i] = (float)std::min(chance(kind, hits, draft.nodes[i]), std::max(left, 0.0));
    }
}

void TextAcceptance::learn(RequestKind kind, TextTerm & hits, const TextDraft & draft, const Tokens & tokens) {
    int at = -1;
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

}  // namespace eaglecpp
