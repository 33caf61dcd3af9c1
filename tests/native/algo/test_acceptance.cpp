// SPDX-License-Identifier: MIT
#include "algo/acceptance.h"

#include <limits>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static double sigmoid(double z) {
    return 1.0 / (1.0 + std::exp(-z));
}

// Returns siblings with the drafter probabilities q, r(1-q), r(1-r)(1-q), ...
static std::vector<Candidate> siblings(double q, int n, double r = 0.45) {
    std::vector<Candidate> out;
    double left = 1.0 - q;
    for (int i = 0; i < n; ++i) {
        out.push_back({10 + i, (float)std::log(i == 0 ? q : r * left)});
        if (i > 0) left *= 1.0 - r;
    }
    return out;
}

// A target that accepts the first child with probability a(q). It accepts each later child with a fraction c of the
// remaining probability.
struct Target {
    double slope, shift, c;

    double first(double q) const { return sigmoid(slope * std::log(q / (1.0 - q)) + shift); }
    int draw(Random & random, double q, int n) const {
        if (random.real() < first(q)) return 0;
        for (int i = 1; i < n; ++i) {
            if (random.real() < c) return i;
        }
        return -1;
    }
};

static void teach(AcceptanceModel & model, TextState & text, const Target & target, int n_labels, uint64_t seed) {
    Random random(seed);
    for (int i = 0; i < n_labels; ++i) {
        const double q = sigmoid(4.0 * random.real() - 1.0);
        const auto children = siblings(q, 4);
        model.learn(RequestKind::greedy, text, {1}, children.data(), 4, target.draw(random, q, 4));
    }
}

static double first_chance(const AcceptanceModel & model, const TextState & text, double q,
                           RequestKind kind = RequestKind::greedy) {
    double a[4];
    const auto children = siblings(q, 4);
    model.predict(kind, text, {1}, children.data(), 4, a);
    return a[0];
}

// Some terms are learned per text. They change with every text and never settle, so this test checks the average of the
// predictions.
TEST(learns_a_drafter_and_is_calibrated) {
    AcceptanceModel model;
    TextState text;
    const Target target{0.5, -0.2, 0.3};
    teach(model, text, target, 1000, 2);
    Random random(3);
    double sum_first = 0.0, sum_second = 0.0, true_first = 0.0;
    const int n = 3000;
    for (int i = 0; i < n; ++i) {
        const double q = sigmoid(4.0 * random.real() - 1.0);
        const auto children = siblings(q, 4);
        double a[4];
        model.predict(RequestKind::greedy, text, {1}, children.data(), 4, a);
        sum_first += a[0];
        sum_second += a[1] / (1.0 - a[0]);
        true_first += target.first(q);
        model.learn(RequestKind::greedy, text, {1}, children.data(), 4, target.draw(random, q, 4));
    }
    CHECK_NEAR(sum_first / n, true_first / n, 0.02);
    CHECK_NEAR(sum_second / n, 0.3, 0.03);
    CHECK(model.n_labels() == 4000);
}

// Terms that are common to all texts are stored with the drafter. After a few short texts, the next text starts with
// good predictions, even at a rarely seen depth. One unusual text does not spoil these predictions.
TEST(properties_common_to_texts_are_kept) {
    AcceptanceModel model;
    TextState text;
    const Target good{0.65, 2.0, 0.1};
    const double truth = good.first(0.5);
    CHECK(first_chance(model, text, 0.5) < truth - 0.3);
    for (int i = 0; i < 6; ++i) {
        teach(model, text, good, 25, 100 + i);
        model.end_text(RequestKind::greedy, text);
    }
    const double known = first_chance(model, TextState(), 0.5);
    CHECK_NEAR(known, truth, 0.1);
    teach(model, text, {0.65, -5.0, 0.02}, 25, 200);
    model.end_text(RequestKind::greedy, text);
    CHECK(first_chance(model, TextState(), 0.5) > known - 0.2);
}

TEST(a_grammar_teaches_nothing_lasting) {
    AcceptanceModel model, fresh;
    TextState text;
    const auto children = siblings(0.8, 4);
    for (int i = 0; i < 300; ++i) model.learn(RequestKind::constrained, text, {1}, children.data(), 4, -1);
    CHECK(model.state() == fresh.state());
    // The terms of this text still learn that a constrained request accepts few drafts.
    CHECK(first_chance(model, text, 0.8, RequestKind::constrained) < 0.2);
}

TEST(kinds_of_request_are_kept_apart) {
    CHECK(request_kind(0.0, false) == RequestKind::greedy && request_kind(-1.0, false) == RequestKind::greedy);
    CHECK(request_kind(0.7, false) == RequestKind::sampled && request_kind(0.8, false) == RequestKind::hot);
    CHECK(request_kind(0.0, true) == RequestKind::constrained);
    CHECK(request_kind(std::nan(""), false) == RequestKind::greedy);
    CHECK(request_kind(0.5, false, true) == RequestKind::coupled_cool);
    CHECK(request_kind(0.8, false, true) == RequestKind::coupled_warm);
    CHECK(request_kind(1.0, false, true) == RequestKind::coupled_hot);
    CHECK(request_kind(0.8, true, true) == RequestKind::coupled_constrained);
    AcceptanceModel model;
    TextState text, other;
    const double before = first_chance(model, other, 0.8, RequestKind::hot);
    teach(model, text, {0.65, -3.0, 0.1}, 500, 8);
    CHECK(first_chance(model, other, 0.8, RequestKind::hot) == before);
    CHECK(first_chance(model, other, 0.8) < before);
}

TEST(hostile_numbers_leave_it_finite) {
    AcceptanceModel model;
    TextState text;
    const float inf = std::numeric_limits<float>::infinity();
    const float values[] = {std::nanf(""), -inf, inf, 0.0f, -1e30f, 5.0f, -60.0f};
    Random random(52);
    for (int round = 0; round < 5000; ++round) {
        Candidate c[4];
        for (auto & v : c)
            v = {1, round % 2 ? values[random.integer(0, 6)] : (float)(-12.0 * random.real() * random.real())};
        double a[4], sum = 0.0;
        const int depth = random.integer(-3, 50);
        model.predict(RequestKind::greedy, text, {depth}, c, 4, a);
        for (double v : a) {
            sum += v;
            CHECK(v >= 0.0);
        }
        CHECK(sum <= 1.0 + 1e-9);  // siblings that share one token have chances that add up to at most 1
        model.learn(RequestKind::greedy, text, {depth}, c, 4, random.integer(-1, 3));
    }
    CHECK(std::isfinite(text.first.value) && std::isfinite(text.later.value));
    CHECK(AcceptanceModel().set_state(model.state()));
}

TEST(survives_a_round_trip_and_refuses_damage) {
    AcceptanceModel model, loaded, other;
    TextState text;
    teach(model, text, {0.4, -1.0, 0.2}, 1000, 9);
    CHECK(loaded.set_state(model.state()) && loaded.state() == model.state());
    CHECK(!other.set_state({}));
    const LearnedState state = model.state();
    for (const auto & [name, values] : state) {
        LearnedState damaged = state;
        damaged[name].pop_back();
        CHECK(!other.set_state(damaged));
        for (size_t i = 0; i < values.size(); ++i) {
            for (double value : {1e7, -1e7, std::nan("")}) {
                damaged = state;
                damaged[name][i] = value;
                CHECK(!other.set_state(damaged));
            }
        }
    }
    for (size_t weight : {0, 1, 2, 3}) {  // damages the slopes and the weights of clean probabilities
        LearnedState damaged = state;
        damaged["class0"][2 * weight] = -0.5;
        CHECK(!other.set_state(damaged));
    }
    CHECK(other.state() == AcceptanceModel().state());
}

// If an acceptance rate was measured, predictions start near this rate at every depth and for every kind of request.
// Learned values take precedence.
TEST(starts_from_the_measured_acceptance) {
    const TextState fresh;
    for (float rate : {0.3f, 0.6f, 0.9f}) {
        AcceptanceModel model;
        model.expect({rate, rate * 0.5f});
        CHECK_NEAR(first_chance(model, fresh, rate), rate, 0.02);
        Candidate c{0, (float)std::log(rate * 0.5f)};
        double a;
        for (int depth : {2, 5, 40}) {
            model.predict(RequestKind::greedy, fresh, {depth}, &c, 1, &a);
            CHECK_NEAR(a, rate * 0.5, 0.02);
        }
    }
    AcceptanceModel taught;
    TextState text;
    teach(taught, text, {0.4, -1.0, 0.2}, 1000, 9);
    const double before = first_chance(taught, fresh, 0.6);
    taught.expect({0.05f});
    CHECK_NEAR(first_chance(taught, fresh, 0.6), before, 1e-12);
}

// The model learns from two more signals of a block drafter. One is the drafter's confidence. The other is whether an
// earlier token of the path was not the drafter's first choice.
TEST(learns_from_confidence_and_from_deviations) {
    AcceptanceModel model;
    TextState text;
    Random random(54);
    const auto child = [](float confidence) { return Candidate{1, -0.5f, 0.0f, confidence}; };
    for (int i = 0; i < 3000; ++i) {
        const bool is_sure = random.real() < 0.5;
        const int n_deviations = random.integer(0, 1);
        const Candidate c = child(is_sure ? 2.0f : -2.0f);
        const double rate = sigmoid(0.9 + (is_sure ? 1.3 : -1.3) - 2.0 * n_deviations);
        model.learn(RequestKind::greedy, text, {2, n_deviations}, &c, 1, random.real() < rate ? 0 : -1);
    }
    const auto chance = [&](const AcceptanceModel & of, float confidence, int n_deviations) {
        const Candidate c = child(confidence);
        double a;
        of.predict(RequestKind::greedy, text, {2, n_deviations}, &c, 1, &a);
        return a;
    };
    CHECK_NEAR(chance(model, 2.0f, 0), 0.9, 0.1);
    CHECK_NEAR(chance(model, -2.0f, 0), 0.4, 0.1);
    CHECK_NEAR(chance(model, 2.0f, 1), 0.55, 0.1);
    CHECK(chance(model, std::nanf(""), 0) > 0.0);
    AcceptanceModel again;
    CHECK(again.set_state(model.state()));
    CHECK_NEAR(chance(again, -2.0f, 1), chance(model, -2.0f, 1), 1e-6);
    AcceptanceModel any, parallel;
    parallel.expect({}, /*is_parallel=*/true);
    CHECK_NEAR(chance(parallel, 0.0f, 0), chance(any, 0.0f, 0), 1e-12);
    CHECK(chance(parallel, 0.0f, 1) < 0.5 * chance(any, 0.0f, 1) &&
          chance(parallel, 0.0f, 2) < chance(parallel, 0.0f, 1));
}
