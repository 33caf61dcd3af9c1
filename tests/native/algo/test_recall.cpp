// SPDX-License-Identifier: MIT
#include "algo/recall.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {
constexpr int n_state = 48, n_vocab = 300;
constexpr Recall::Last no_text = {-1, -1, -1, -1};

// The draft vocabulary has every second token.
const std::vector<Token> & d2t() {
    static const std::vector<Token> table = [] {
        std::vector<Token> t;
        for (Token token = 0; token < n_vocab; token += 2) t.push_back(token);
        return t;
    }();
    return table;
}

std::vector<float> random_numbers(Random & random, int n) {
    std::vector<float> x(n);
    for (float & v : x) v = (float)(2.0 * random.real() - 1.0);
    return x;
}

// A state, and the drafter's logits there, in which token 10 is the likeliest.
struct Scene {
    std::vector<float> state, logits;

    explicit Scene(Random & random)
        : state(random_numbers(random, n_state)), logits(random_numbers(random, (int)d2t().size())) {
        logits[5] = 4.0f;
    }
};

// what a target says that is sure of a token
struct Verdict {
    std::vector<Token> tokens;
    std::vector<float> logits;

    explicit Verdict(Token sure) {
        tokens = {sure};
        for (Token token = 0; token < 20; ++token) {
            if (token != sure) tokens.push_back(token);
        }
        logits.assign(tokens.size(), 0.0f);
        logits[0] = 9.0f;
    }
    TokenLogits best() const { return {logits.data(), (int)logits.size(), tokens.data()}; }
};

float logit_of(const TokenLogits & row, Token token) {
    const Token * at = std::find(row.ids, row.ids + row.n, token);
    return at == row.ids + row.n ? -INFINITY : row.logits[at - row.ids];
}

Token likeliest(const TokenLogits & row) {
    if (row.n == 0) return -1;
    return row.ids[std::max_element(row.logits, row.logits + row.n) - row.logits];
}

// asks, and lets the target judge
Token ask(Recall & recall, const Scene & at, Token target, Pos pos) {
    recall.begin_round();
    const Token said = likeliest(recall.recall(0, no_text, at.state.data(), at.logits.data()));
    recall.learn(0, pos, Verdict(target).best());
    return said;
}
}  // namespace

static void without_notes_nothing_changes() {
    Random random(1);
    Recall recall(n_state, d2t(), n_vocab);
    const Scene at(random);
    const TokenLogits row = recall.recall(0, no_text, at.state.data(), at.logits.data());
    CHECK(row.n > 0 && row.n < (int)d2t().size());
    for (int i = 0; i < row.n; ++i) CHECK(row.logits[i] == at.logits[row.ids[i] / 2]);
    CHECK(likeliest(row) == 10);
    CHECK(!Recall().is_on() && recall.is_on());
}

// A drafter that is wrong is corrected, where its state is alike and not where it is another one; a token that it lacks
// can be drafted; and what it is right about stays.
static void similar_states_are_corrected() {
    for (const Token target : {20, 21}) {
        Random random(2);
        Recall recall(n_state, d2t(), n_vocab);
        const Scene at(random), elsewhere(random);
        Pos pos = 7;
        CHECK(ask(recall, at, target, pos++) == 10);
        for (int i = 0; i < 8; ++i) ask(recall, at, target, pos++);
        CHECK(ask(recall, at, target, pos++) == target);
        Scene near = at;
        for (float & v : near.state) v += (float)(0.1 * random.real());
        CHECK(likeliest(recall.recall(1, no_text, near.state.data(), near.logits.data())) == target);
        Scene opposite = at;
        for (float & v : opposite.state) v = -v;
        const TokenLogits row = recall.recall(2, no_text, opposite.state.data(), opposite.logits.data());
        CHECK(likeliest(row) == 10 && logit_of(row, 10) == 4.0f);
        CHECK(likeliest(recall.recall(3, no_text, elsewhere.state.data(), elsewhere.logits.data())) == 10);
    }
    Random random(3);
    Recall recall(n_state, d2t(), n_vocab);
    const Scene at(random);
    for (Pos pos = 0; pos < 20; ++pos) CHECK(ask(recall, at, 10, pos) == 10);
}

// A drafter that says what the target says is left alone; one that does not is trusted less with noise.
static void sharpening_follows_the_distance() {
    Random random(9);
    Recall right(n_state, d2t(), n_vocab), wrong(n_state, d2t(), n_vocab);
    CHECK(right.sharpening() == 1.0f);
    for (Pos pos = 0; pos < 10; ++pos) {
        const Scene at(random);
        const TokenLogits said = right.recall(0, no_text, at.state.data(), at.logits.data());
        std::vector<int> order(said.n);
        for (int i = 0; i < said.n; ++i) order[i] = i;
        std::sort(order.begin(), order.end(), [&](int a, int b) { return said.logits[a] > said.logits[b]; });
        Verdict same(0);
        same.tokens.clear();
        same.logits.clear();
        for (int i : order) same.tokens.push_back(said.ids[i]), same.logits.push_back(said.logits[i]);
        right.learn(0, pos, same.best());
        right.begin_round();
        ask(wrong, at, 20 + 2 * (pos % 3), pos);
    }
    wrong.begin_round();
    CHECK_NEAR(right.sharpening(), 1.0, 1e-4);
    const Scene at(random);
    const TokenLogits row = right.recall(0, no_text, at.state.data(), at.logits.data());
    for (int i = 0; i < row.n; ++i) CHECK_NEAR(row.logits[i], at.logits[row.ids[i] / 2], 1e-4);
    CHECK(wrong.sharpening() > 1.2f && wrong.sharpening() <= 1.5f);
}

// The length of a state says nothing.
static void states_are_compared_by_their_direction() {
    Random random(4);
    Recall recall(n_state, d2t(), n_vocab);
    Scene at(random);
    for (Pos pos = 0; pos < 9; ++pos) ask(recall, at, 20, pos);
    const float before = logit_of(recall.recall(1, no_text, at.state.data(), at.logits.data()), 20);
    for (float & v : at.state) v *= 1000.0f;
    CHECK(logit_of(recall.recall(2, no_text, at.state.data(), at.logits.data()), 20) == before);
}

// What is known depends on the text alone: after going back it is as if the rest had never been.
static void going_back_forgets() {
    Random random(5);
    Recall twice(n_state, d2t(), n_vocab), once(n_state, d2t(), n_vocab);
    std::vector<Scene> scenes;
    for (int i = 0; i < 30; ++i) scenes.emplace_back(random);
    for (Pos pos = 0; pos < 10; ++pos)
        ask(once, scenes[pos], 20 + pos % 5, pos), ask(twice, scenes[pos], 20 + pos % 5, pos);
    for (Pos pos = 10; pos < 30; ++pos) ask(twice, scenes[pos], 41, pos);
    CHECK(twice.n_notes() == 30);
    twice.truncate(10);
    CHECK(twice.n_notes() == 10);
    for (int i = 0; i < 30; ++i) {
        const TokenLogits a = once.recall(i, no_text, scenes[i].state.data(), scenes[i].logits.data());
        const TokenLogits b = twice.recall(i, no_text, scenes[i].state.data(), scenes[i].logits.data());
        CHECK(std::equal(a.logits, a.logits + a.n, b.logits, b.logits + b.n));
        CHECK(std::equal(a.ids, a.ids + a.n, b.ids, b.ids + b.n));
    }
    twice.truncate(0);
    CHECK(twice.n_notes() == 0);
}

static void old_notes_go() {
    Random random(6);
    Recall recall(n_state, d2t(), n_vocab);
    const Scene at(random);
    for (Pos pos = 0; pos < 20; ++pos) ask(recall, at, 20, pos);
    for (Pos pos = 20; pos < 20 + Recall::n_notes_most; ++pos) {
        Scene other(random);
        for (int i = 0; i < n_state; ++i) other.state[i] = -at.state[i];
        ask(recall, other, 10, pos);
    }
    CHECK(recall.n_notes() == Recall::n_notes_most);
    CHECK(logit_of(recall.recall(1, no_text, at.state.data(), at.logits.data()), 10) == 4.0f);
    recall.truncate(20);
    CHECK(recall.n_notes() == 0);
}

// What is said behind a rejected draft counts for more than the rest, and goes when the text does that rejected it.
static void rejected_drafts_teach_too() {
    Random random(8);
    Recall committed(n_state, d2t(), n_vocab), rejected(n_state, d2t(), n_vocab);
    const Scene at(random);
    for (Recall * recall : {&committed, &rejected}) {
        recall->begin_round();
        recall->recall(3, no_text, at.state.data(), at.logits.data());
        CHECK(recall->is_guess(3) && !recall->is_guess(2));
        recall->learn(3, 9, Verdict(20).best(), recall == &rejected);
    }
    const auto gained = [&](Recall & recall) {
        return logit_of(recall.recall(1, no_text, at.state.data(), at.logits.data()), 20) - at.logits[10];
    };
    CHECK(gained(committed) > 0.5f);
    CHECK(gained(rejected) > 1.2f * gained(committed));
    rejected.truncate(10);
    CHECK(rejected.n_notes() == 1);
    rejected.truncate(9);
    CHECK(rejected.n_notes() == 0);
}

// Where the last words are the same, too, a note counts for more.
static void the_last_tokens_count() {
    Random random(10);
    Recall recall(n_state, d2t(), n_vocab);
    const Scene at(random);
    recall.recall(0, {7, 8, 9, 1}, at.state.data(), at.logits.data());
    recall.learn(0, 3, Verdict(20).best());
    const auto known = [&](const Recall::Last & last) {
        const TokenLogits row = recall.recall(1, last, at.state.data(), at.logits.data());
        return logit_of(row, 20);
    };
    const float alone = known(no_text);
    CHECK(alone > at.logits[10] && known({7, 0, 9, 1}) == alone && known({0, 8, 9, 1}) == alone);
    CHECK(known({7, 8, 0, 1}) > alone);
    CHECK(known({7, 8, 9, 0}) > known({7, 8, 0, 1}));
    CHECK(known({7, 8, 9, 1}) > known({7, 8, 9, 0}));
}

// Only what was drafted in this round is judged.
static void unknown_nodes_leave_no_note() {
    Random random(7);
    Recall recall(n_state, d2t(), n_vocab);
    const Scene at(random);
    recall.recall(3, no_text, at.state.data(), at.logits.data());
    recall.learn(2, 5, Verdict(20).best());
    CHECK(recall.n_notes() == 0);
    recall.begin_round();
    recall.learn(3, 5, Verdict(20).best());
    CHECK(recall.n_notes() == 0);
}

// A broken drafter or target spoils nothing for later.
static void what_is_no_number_is_not_learnt() {
    const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
    Random random(8);
    Recall recall(n_state, d2t(), n_vocab);
    const Scene at(random);
    Scene broken = at;
    for (const float x : {nan, inf, -inf}) {
        broken.logits.assign(broken.logits.size(), x);
        ask(recall, broken, 20, 0);
        broken.logits = at.logits;
        broken.state.assign(n_state, x);
        ask(recall, broken, 20, 1);
        broken.state = at.state;
        recall.begin_round();
        recall.recall(0, no_text, at.state.data(), at.logits.data());
        Verdict verdict(20);
        verdict.logits.assign(verdict.logits.size(), x);
        recall.learn(0, 2, verdict.best());
    }
    const TokenLogits row = recall.recall(1, no_text, at.state.data(), at.logits.data());
    for (int i = 0; i < row.n; ++i) CHECK(std::isfinite(row.logits[i]));
    CHECK(likeliest(row) == 10);
}

int main() {
    without_notes_nothing_changes();
    similar_states_are_corrected();
    sharpening_follows_the_distance();
    states_are_compared_by_their_direction();
    going_back_forgets();
    old_notes_go();
    rejected_drafts_teach_too();
    the_last_tokens_count();
    unknown_nodes_leave_no_note();
    what_is_no_number_is_not_learnt();
    return result();
}
