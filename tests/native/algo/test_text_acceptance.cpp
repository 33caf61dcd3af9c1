// SPDX-License-Identifier: MIT
// What is learned about drafts from the text: by length of the match, by what came of late, kept and read back.
#include "algo/acceptance.h"

#include <sstream>
#include <string>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

TextDraft chain(int n, int n_match) {
    TextDraft draft;
    for (int i = 0; i < n; ++i) draft.nodes.push_back({100 + i, i - 1, n_match + i, TextDraft::Source::longest});
    return draft;
}

float first(const TextAcceptance & model, const TextTerm & hits, const TextDraft & draft) {
    std::vector<float> a;
    model.predict(RequestKind::greedy, hits, draft, a);
    return a[0];
}

}  // namespace

static void longer_matches_are_likelier() {
    TextAcceptance model;
    TextTerm hits;
    float last = 0.0f;
    for (int n_match : {1, 2, 3, 4, 5, 8, 12, 20, 40}) {
        const float a = first(model, hits, chain(1, n_match));
        CHECK(a > last && a < 1.0f);
        last = a;
    }
}

static void chances_of_siblings_sum_to_at_most_one() {
    TextAcceptance model;
    TextTerm hits;
    TextDraft draft;
    for (int i = 0; i < 4; ++i) draft.nodes.push_back({i, -1, 40, TextDraft::Source::longest});
    std::vector<float> a;
    model.predict(RequestKind::greedy, hits, draft, a);
    float sum = 0.0f;
    for (float one : a) sum += one;
    CHECK(sum <= 1.0f + 1e-6f);
}

// Each length finds its own rate, whatever it starts from.
static void the_rate_of_each_length_is_learned() {
    TextAcceptance model;
    Random random(5);
    const double rates[] = {0.55, 0.2, 0.97};
    const int lengths[] = {2, 10, 40};
    double means[3] = {};
    constexpr int n = 6000;
    for (int i = 0; i < n; ++i) {
        TextTerm hits;  // a new text each time: only the weights learn
        for (int l = 0; l < 3; ++l) {
            const TextDraft draft = chain(1, lengths[l]);
            if (i >= n / 2) means[l] += first(model, hits, draft) / (n / 2);
            model.learn(RequestKind::greedy, hits, draft, {random.real() < rates[l] ? 100 : 5});
        }
    }
    for (int l = 0; l < 3; ++l) CHECK_NEAR(means[l], rates[l], 0.05);
    // other kinds of requests learn for themselves
    std::vector<float> a;
    model.predict(RequestKind::hot, {}, chain(1, 10), a);
    CHECK(a[0] > 0.6f);
}

// A text that does not copy is noticed within a few rounds, and so is one that begins to.
static void recent_hits_count() {
    TextAcceptance model;
    TextTerm hits;
    const TextDraft draft = chain(8, 12);
    const float before = first(model, hits, draft);
    for (int i = 0; i < 6; ++i) model.learn(RequestKind::greedy, hits, draft, {5});
    const float low = first(model, hits, draft);
    CHECK_MSG(low < 0.6f * before, strf("%.2f after %.2f", low, before));
    for (int i = 0; i < 3; ++i) {
        model.learn(RequestKind::greedy, hits, draft, {100, 101, 102, 103, 104, 105, 106, 107, 5});
    }
    CHECK_MSG(first(model, hits, draft) > 0.85f, strf("%.2f", first(model, hits, draft)));
}

// What the target never reached is not learned from.
static void only_what_was_reached_teaches() {
    TextAcceptance a, b;
    TextTerm of_a, of_b;
    for (int i = 0; i < 20; ++i) {
        a.learn(RequestKind::greedy, of_a, chain(6, 12), {5, 101, 102});
        b.learn(RequestKind::greedy, of_b, chain(1, 12), {5});
    }
    CHECK(a.to_text("k") == b.to_text("k"));
    CHECK(a.reliability().n_labels() == 20.0);
}

static void the_state_is_read_back_and_damage_refused() {
    TextAcceptance model;
    TextTerm hits;
    for (int i = 0; i < 50; ++i) model.learn(RequestKind::greedy, hits, chain(3, 2 + i % 9), {100, 101, 7});
    const std::string text = model.to_text("a key");
    TextAcceptance other;
    CHECK(other.from_text(text, "a key") && other.to_text("a key") == text);
    CHECK(!other.from_text(text, "another key"));
    CHECK(!other.from_text(text.substr(0, text.size() / 2), "a key"));
    CHECK(!other.from_text("", "a key"));
    CHECK(other.to_text("a key") == text);
}

// Older files have rows for more sources; those that are left are read from their places.
static void an_older_state_is_read() {
    TextAcceptance model, other;
    TextTerm hits;
    for (int i = 0; i < 50; ++i) model.learn(RequestKind::greedy, hits, chain(3, 2 + i % 9), {100, 101, 7});
    for (int n_more : {1, 3}) {
        std::string older;
        std::istringstream lines(model.to_text("a key"));
        for (std::string line; std::getline(lines, line); older += line + "\n") {
            if (line.compare(0, 4, "text") != 0) continue;
            std::istringstream words(line);
            std::string word;
            line.clear();
            for (int i = 0; words >> word; ++i) {
                if (i == 1 + 20)
                    line += " 0.5 1" + std::string(" 0.5 1 0.5 1 0.5 1 0.5 1 0.5 1 0.5 1 0.5 1 0.5 1 0.5 1");
                line += (i > 0 ? " " : "") + word;
            }
            for (int i = 10; i < 10 * n_more; ++i) line += " 0.5 1";
        }
        CHECK(other.from_text(older, "a key"));
        CHECK(other.to_text("a key") == model.to_text("a key"));
    }
}

int main() {
    longer_matches_are_likelier();
    chances_of_siblings_sum_to_at_most_one();
    the_rate_of_each_length_is_learned();
    recent_hits_count();
    only_what_was_reached_teaches();
    the_state_is_read_back_and_damage_refused();
    an_older_state_is_read();
    return result();
}
