// SPDX-License-Identifier: MIT
// Compares the text index with a search of the whole text. The index must find the same matches and continuations, with
// little memory and time.
#include "algo/text.h"

#include <algorithm>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

// Returns two numbers: the length of the longest suffix that also occurs earlier in the text, and the end of its latest
// earlier occurrence.
std::pair<int, int> longest_by_search(const Tokens & text) {
    std::pair<int, int> best{0, -1};
    const int last = (int)text.size() - 1;
    for (int end = 0; end < last; ++end) {
        int n = 0;
        while (n <= end && text[end - n] == text[last - n]) ++n;
        if (n >= best.first) best = {n, end};
    }
    return best;
}

Tokens some_text(Random & random, int n, int n_tokens) {
    Tokens out;
    while ((int)out.size() < n) {
        const bool copies = random.real() < 0.1 && !out.empty();
        if (!copies) {
            out.push_back(random.integer(0, n_tokens - 1));
            continue;
        }
        const int from = random.integer(0, (int)out.size() - 1), length = random.integer(1, 30);
        for (int i = 0; i < length; ++i) out.push_back(out[from + i]);
    }
    return out;
}

}  // namespace

TEST(proposes_the_continuation_of_the_longest_suffix) {
    for (int seed = 0; seed < 30; ++seed) {
        Random random(seed);
        TextIndex index;
        Tokens text;
        for (Token token : some_text(random, 250, seed % 3 == 0 ? 2 : 12)) {
            text.push_back(token);
            index.add(token);
            const int n = random.integer(0, 20);
            const auto [length, end] = longest_by_search(text);
            const TextDraft draft = index.propose(n);
            if (length < 2) {  // single tokens occur everywhere, so they do not count
                CHECK(draft.empty());
                continue;
            }
            CHECK_MSG(draft.size() == n && draft.n_match == std::min(length, 64),
                      strf("seed %d at %zu: %d", seed, text.size(), draft.n_match));
            Tokens expected = text;
            // The draft continues the earlier occurrence. It may reach its own first token and continue from there.
            for (int i = 0; i < n; ++i) expected.push_back(expected[end + 1 + i]);
            if (length < 64) CHECK(draft.tokens == Tokens(expected.end() - n, expected.end()));
        }
    }
}

TEST(keeps_the_common_prefix_of_another_prompt) {
    for (int seed = 0; seed < 20; ++seed) {
        Random random(100 + seed);
        TextIndex index(seed % 5 == 0 ? 64 : 1 << 12), fresh(1 << 12);
        Tokens text;
        for (Token token : some_text(random, 400, seed % 2 ? 3 : 20)) {
            text.push_back(token);
            index.add(token);
            for (Token proposed : index.propose(20).tokens) CHECK(std::count(text.begin(), text.end(), proposed) > 0);
            if (random.integer(0, 60) > 0) continue;
            text.resize(random.integer(1, (int)text.size()));
            index.assign(text);
            fresh.clear();
            fresh.assign(text);
            if (seed % 5) CHECK(index.propose(20).tokens == fresh.propose(20).tokens);
        }
    }
}

TEST(rows_of_images_are_not_proposed) {
    TextIndex index;
    for (Token token : {7, 8, 9, -5, -6, 7, 8}) index.add(token);
    CHECK(index.propose(4).tokens == Tokens{9});
}

// The cost of a token does not depend on the length of the text. Otherwise ctest's timeout would end this test.
TEST(a_token_costs_the_same_in_a_long_text) {
    for (int n_tokens : {2, 60, 30000}) {
        Random random(n_tokens);
        TextIndex index;
        for (Token token : some_text(random, 120000, n_tokens)) {
            index.add(token);
            index.propose(32);
        }
    }
}
