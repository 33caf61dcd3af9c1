// SPDX-License-Identifier: MIT
#include "algo/recall.h"

#include <algorithm>
#include <cmath>

#include "algo/row_loops.h"

namespace eaglecpp {

namespace {
// Of the drafter's distribution. What they leave out is too unlikely to be drafted, whatever is recalled.
constexpr int n_likely = Recall::n_looked_at;
constexpr float least_p = 0.01f;    // of tokens the drafter lacks, in a note
constexpr float least_sum = 1e-4f;  // and of all notes
// The weight of a note falls with the angle between the states. Chosen on answers of SmolLM2-135M-Instruct
// (docs/research/recall.md), like n_differences_most and n_notes_most.
constexpr float sharpness = 4.0f, weight = 2.0f;
constexpr float rejected_weight = 1.5f;  // they are about the very tokens that are drafted next
constexpr float match_weight = 0.3f;     // logarithm, for each last token that is the same after the first
constexpr float distrust = 0.5f;
constexpr float unlike = 0.1f;       // so much weight together is little
constexpr float unit = 127.0f;       // length of a state
constexpr float least_step = 0.03f;  // in logits; less changes no draft, but there is much of it

float match_factor(const Recall::Last & a, const Recall::Last & b) {
    static const std::array<float, std::tuple_size_v<Recall::Last> + 1> of = [] {
        std::array<float, std::tuple_size_v<Recall::Last> + 1> f;
        for (size_t n = 0; n < f.size(); ++n) f[n] = n == 0 ? 1.0f : std::exp(match_weight * (float)(n - 1));
        return f;
    }();
    size_t n = 0;
    while (n < a.size() && a[n] >= 0 && a[n] == b[n]) ++n;
    return of[n];
}

// exp(sharpness * (cos - 1)) for a product of two states, above 0 and up to a little more than unit * unit
float likeness(int32_t product) {
    constexpr int n_each = 16, n_products = (int)(unit * unit) / n_each;
    static const std::array<float, n_products + 1> of = [] {
        std::array<float, n_products + 1> f;
        for (int i = 0; i <= n_products; ++i) f[i] = std::exp(sharpness * ((float)i / n_products - 1.0f));
        return f;
    }();
    return of[std::min(product / n_each, n_products)];
}

// From logits, the largest of which is `top`, to probabilities among them. Returns log(sum(exp(logits))).
float to_probabilities(std::vector<std::pair<int, float>> & x, float top) {
    float sum = 0.0f;
    for (auto & [i, value] : x) sum += value = std::exp(value - top);
    for (auto & [i, value] : x) value /= sum;
    return top + std::log(sum);
}
}  // namespace

Recall::Recall(int n_state, const std::vector<Token> & d2t, int n_vocab)
    : n_state_(n_state), d2t_(&d2t), t2d_(n_vocab, -1), added_(d2t.size()) {
    for (size_t i = 0; i < d2t.size(); ++i) t2d_[d2t[i]] = (int)i;
    notes_.resize(n_notes_most);
    states_.resize((size_t)n_notes_most * n_state);
    products_.resize(n_notes_most);
}

void Recall::begin_round() {
    n_guesses_ = 0;
    float sum = 0.0f;
    for (int i = begin_; i < end_; ++i) sum += note(i).distance;
    sharpening_ = n_notes() == 0 ? 1.0f : 1.0f + distrust * sum / (float)n_notes();
}

Recall::Guess & Recall::add_guess(int node, const Last & last, const float * state) {
    if (n_guesses_ == (int)guesses_.size()) guesses_.emplace_back();
    Guess & guess = guesses_[n_guesses_++];
    guess.node = node;
    guess.last = last;
    float lane[8] = {};  // apart, as one sum would wait for itself
    const int n_whole = n_state_ / 8 * 8;
    for (int i = 0; i < n_whole; i += 8) {
        for (int j = 0; j < 8; ++j) lane[j] += state[i + j] * state[i + j];
    }
    float sum = 0.0f;
    for (float x : lane) sum += x;
    for (int i = n_whole; i < n_state_; ++i) sum += state[i] * state[i];
    // a file may hold weights that give no numbers
    const float scale = sum > 0.0f && std::isfinite(sum) ? unit / std::sqrt(sum) : 0.0f;
    guess.state.assign(n_state_, 0);
    for (int i = 0; i < n_state_ && scale > 0.0f; ++i) {
        const float x = scale * state[i];
        guess.state[i] = (int16_t)(x < 0.0f ? x - 0.5f : x + 0.5f);
    }
    return guess;
}

TokenLogits Recall::recall(int node, const Last & last, const float * state, const float * logits) {
    Guess & guess = add_guess(node, last, state);
    const std::vector<int> & likely = largest_.of(logits, (int)d2t_->size(), n_likely);
    guess.likely.clear();
    logits_.clear();
    ids_.clear();
    if (likely.empty()) return {logits_.data(), 0, ids_.data()};
    weigh(guess);
    const float least = logits[likely.back()];
    float top = -INFINITY;
    const auto take = [&](int index) {
        logits_.push_back(logits[index] + added_[index]);
        ids_.push_back((*d2t_)[index]);
        guess.likely.emplace_back(index, logits_.back());
        top = std::max(top, logits_.back());
        added_[index] = 0.0f;
    };
    for (int index : likely) take(index);
    for (int index : touched_) {
        if (added_[index] > 0.0f && logits[index] + added_[index] > least) take(index);
        added_[index] = 0.0f;
    }
    // A note is about what was said with the help of those before it, so that they do not add up.
    const float log_sum = to_probabilities(guess.likely, top);
    // The share that the target gave them where the state was alike stands for the drafter's probability.
    for (int i : touched_others_) {
        const float p = others_[i] / (others_weight_ + unlike);
        others_[i] = 0.0f;
        if (p < least_sum) continue;
        logits_.push_back(log_sum + std::log(p));
        ids_.push_back(lacked_[i]);
    }
    return {logits_.data(), (int)logits_.size(), ids_.data()};
}

// What the notes add: to added_, touched_ and others_.
void Recall::weigh(const Guess & guess) {
    touched_.clear();
    touched_others_.clear();
    others_weight_ = 0.0f;
    if (n_notes() == 0) return;
    dots(states_.data(), std::min(end_, n_notes_most), n_state_, guess.state.data(), products_.data());
    for (int i = begin_; i < end_; ++i) {
        const int32_t product = products_[i % n_notes_most];
        if (product <= 0) continue;
        const Note & note = this->note(i);
        const float like = likeness(product);
        const float matching = match_factor(note.last, guess.last);
        const float step = (note.is_rejected ? rejected_weight * weight : weight) * matching * like;
        for (int j = 0; j < note.n_differences; ++j) {
            const auto [index, difference] = note.differences[j];
            if (step * std::abs(difference) < least_step) break;  // the largest come first
            if (added_[index] == 0.0f) touched_.push_back(index);
            added_[index] += step * difference;
        }
        // tokens that the drafter lacks need a state that is more alike
        const float strict = matching * like * like * like;
        others_weight_ += strict;
        for (int j = 0; j < note.n_others; ++j) {
            const auto [place, p] = note.others[j];
            if (others_[place] == 0.0f) touched_others_.push_back(place);
            others_[place] += strict * p;
        }
    }
}

const Recall::Guess * Recall::guess_of(int node) const {
    for (int i = 0; i < n_guesses_; ++i) {
        if (guesses_[i].node == node) return &guesses_[i];
    }
    return nullptr;
}

void Recall::learn(int node, Pos pos, const TokenLogits & best, bool is_rejected) {
    const Guess * guess = guess_of(node);
    if (!guess || best.n == 0) return;
    Note & note = this->note(end_);
    note.pos = pos;
    note.last = guess->last;
    note.is_rejected = is_rejected;
    compare(*guess, best, note);
    std::copy(guess->state.begin(), guess->state.end(), state(end_));
    ++end_;
    begin_ = std::max(begin_, end_ - n_notes_most);
}

// in lacked_
int Recall::place_of(Token token) {
    if (t2d_[token] == -1) {
        t2d_[token] = -2 - (int)lacked_.size();
        lacked_.push_back(token);
        others_.push_back(0.0f);
    }
    return -2 - t2d_[token];
}

void Recall::compare(const Guess & guess, const TokenLogits & best, Note & note) {
    std::vector<std::pair<int, float>> & target = differences_;
    target.clear();
    for (int i = 0; i < std::min(best.n, n_looked_at); ++i) target.emplace_back(i, best.logits[i]);
    to_probabilities(target, best.logits[0]);
    note.n_others = 0;
    size_t n = 0;
    for (const auto & [i, p] : target) {
        const int index = t2d_[best.ids[i]];
        if (index >= 0) {
            target[n++] = {index, p};
        } else if (p >= least_p && note.n_others < n_others_most) {
            note.others[note.n_others++] = {place_of(best.ids[i]), p};
        }
    }
    differences_.resize(n);
    for (const auto & [index, p] : guess.likely) {
        const auto same = [i = index](const auto & d) { return d.first == i; };
        const auto it = std::find_if(differences_.begin(), differences_.begin() + n, same);
        if (it == differences_.begin() + n) {
            differences_.emplace_back(index, -p);
        } else {
            it->second -= p;
        }
    }
    note.n_differences = (int)std::min<size_t>(n_differences_most, differences_.size());
    std::partial_sort(differences_.begin(), differences_.begin() + note.n_differences, differences_.end(),
                      [](const auto & a, const auto & b) { return std::abs(a.second) > std::abs(b.second); });
    std::copy_n(differences_.begin(), note.n_differences, note.differences.begin());
    note.distance = 0.0f;
    for (const auto & [index, difference] : differences_) note.distance += 0.5f * std::abs(difference);
    if (!std::isfinite(note.distance)) note.n_differences = note.n_others = 0, note.distance = 0.0f;
}

void Recall::truncate(Pos pos) {
    while (end_ > begin_ && note(end_ - 1).pos >= pos) --end_;
    if (end_ == begin_) begin_ = end_ = 0;
    n_guesses_ = 0;
}

}  // namespace eaglecpp
