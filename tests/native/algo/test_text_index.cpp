// SPDX-License-Identifier: MIT
// Drafts from the text itself, held against a search through the whole text: exact matches, what follows them, copies
// that break off, memory and time.
#include "algo/text.h"

#include <algorithm>
#include <chrono>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

// length of the longest suffix of text that also ends before its last token
int longest_by_search(const Tokens & text) {
    int best = 0;
    const int last = (int)text.size() - 1;
    for (int end = 0; end < last; ++end) {
        int n = 0;
        while (n <= end && text[end - n] == text[last - n]) ++n;
        best = std::max(best, n);
    }
    return best;
}

bool agrees(const Tokens & text, const SuffixAutomaton::Match & match) {
    for (int i = 0; i < match.length; ++i) {
        if (text[match.end - i] != text[text.size() - 1 - i]) return false;
    }
    return true;
}

Tokens chain(const TextDraft & draft) {
    Tokens out;
    int at = 0;
    for (int i = 1; i < draft.size(); ++i) {
        if (draft.nodes[i].parent == at) out.push_back(draft.nodes[i].token), at = i;
    }
    return out;
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

// legal trees whose paths stand in the text, each node with a sibling of no other token
void check_draft(const Tokens & text, const TextDraft & draft, int n_nodes, int depth, bool is_tree) {
    CHECK(draft.size() <= 1 + n_nodes);
    for (int i = 1; i < draft.size(); ++i) {
        const TextDraft::Node & node = draft.nodes[i];
        CHECK(node.parent >= 0 && node.parent < i && node.token >= 0 && node.n_match >= 0);
        CHECK(node.depth == draft.nodes[node.parent].depth + 1 && node.depth <= depth);
        for (int j = 1; j < i; ++j) {
            CHECK(draft.nodes[j].parent != node.parent || (is_tree && draft.nodes[j].token != node.token));
        }
        CHECK(text.empty() || std::find(text.begin(), text.end(), node.token) != text.end());
    }
}

}  // namespace

static void the_longest_suffix_is_found() {
    for (int seed = 0; seed < 30; ++seed) {
        Random random(seed);
        const Tokens all = some_text(random, 250, seed % 3 == 0 ? 2 : 12);
        SuffixAutomaton automaton;
        Tokens text;
        for (Token token : all) {
            text.push_back(token);
            automaton.add(token);
            const SuffixAutomaton::Match match = automaton.longest();
            CHECK_MSG(match.length == longest_by_search(text),
                      strf("seed %d at %zu: %d", seed, text.size(), match.length));
            CHECK(match.length == 0 || (match.end >= match.length - 1 && match.end < (int)text.size() - 1));
            CHECK(agrees(text, match));
        }
    }
}

static void proposals_are_legal_whatever_stands_there() {
    for (int seed = 0; seed < 40; ++seed) {
        Random random(100 + seed);
        const Tokens all = some_text(random, 400, seed % 2 ? 3 : 20);
        TextIndex index(seed % 4 == 3 ? 100 : 0, seed % 5 == 0 ? 64 : 1 << 12);
        Tokens text;
        for (Token token : all) {
            text.push_back(token);
            index.add(token);
            const int n_nodes = random.integer(0, 40), depth = random.integer(0, 20);
            const bool is_tree = random.integer(0, 1) == 1;
            // earlier texts are proposed from, too, where they are kept
            const Tokens & source = seed % 4 == 3 ? Tokens{} : text;
            check_draft(source, index.propose(n_nodes, depth, is_tree), n_nodes, depth, is_tree);
            if (random.integer(0, 60) == 0) {  // another prompt that begins alike
                text.resize(random.integer(1, (int)text.size()));
                index.assign(text);
            }
        }
    }
}

static void a_copy_is_proposed_to_its_end() {
    Tokens text;
    for (Token t = 0; t < 50; ++t) text.push_back(t);
    text.push_back(900);
    for (Token t = 0; t < 3; ++t) text.push_back(t);
    TextIndex index;
    index.assign(text);
    const TextDraft & draft = index.propose(16, 16, false);
    CHECK(draft.size() == 17 && draft.nodes[1].n_match == 3 && draft.nodes[16].n_match == 18);
    for (int i = 1; i < draft.size(); ++i) CHECK(draft.nodes[i].token == 2 + i && draft.nodes[i].parent == i - 1);
}

// one token between two that recur is a period of two
static void a_copy_that_reaches_the_end_goes_on_with_itself() {
    TextIndex index;
    index.assign({7, 8, 7, 8, 7, 8});
    CHECK(chain(index.propose(5, 5, false)) == (Tokens{7, 8, 7, 8, 7}));
}

static Tokens source_text() {
    Tokens text;
    for (Token t = 100; t < 160; ++t) text.push_back(t);
    text.push_back(1);
    for (Token t = 100; t < 110; ++t) text.push_back(t);
    return text;
}

static void a_copy_goes_on_behind_a_changed_token() {
    TextIndex index;
    index.assign(source_text());
    index.add(7);  // in place of 110
    CHECK(index.propose(3, 3, false).empty());
    index.add(111);
    CHECK(index.propose(3, 3, false).nodes[1].source == TextDraft::Source::resumed);
    CHECK(chain(index.propose(3, 3, false)) == (Tokens{112, 113, 114}));
}

// Not the nearest place where the last token stands, but the one that more of the last tokens agree with.
static void a_copy_goes_on_where_most_agrees() {
    Tokens text;
    for (Token t = 100; t < 110; ++t) text.push_back(t);
    text.insert(text.end(), {59, 40, 60, 5, 61, 40, 5, 32, 33, 1});
    for (Token t = 100; t < 110; ++t) text.push_back(t);
    text.insert(text.end(), {40, 5});
    TextIndex index;
    index.assign(text);
    const TextDraft & draft = index.propose(2, 2, false);
    CHECK(draft.nodes[1].source == TextDraft::Source::resumed && draft.nodes[1].n_match == 2);
    CHECK(chain(draft) == (Tokens{32, 33}));
}

static void a_broken_copy_and_a_match_elsewhere_are_branches() {
    Tokens text{20, 110, 500, 501};
    for (Token token : source_text()) text.push_back(token);
    text.insert(text.end(), {20, 110});
    TextIndex index;
    index.assign(text);
    const TextDraft draft = index.propose(20, 3, true);
    Tokens first;
    for (const TextDraft::Node & node : draft.nodes) {
        if (node.parent == 0) first.push_back(node.token);
    }
    CHECK(first == (Tokens{111, 500}));
    CHECK(draft.nodes[1].source == TextDraft::Source::resumed &&
          draft.nodes.back().source == TextDraft::Source::longest);
    CHECK(chain(index.propose(20, 3, false)) == (Tokens{111, 112, 113}));
}

static void a_copy_goes_on_behind_an_insertion_and_a_deletion() {
    for (bool deletes : {false, true}) {
        TextIndex index;
        index.assign(source_text());
        if (!deletes) {
            for (Token t = 20; t < 50; ++t) index.add(t);
        }
        const Token next = deletes ? 116 : 110;
        index.add(next);
        CHECK_MSG(chain(index.propose(3, 3, false)) == (Tokens{next + 1, next + 2, next + 3}), strf("%d", deletes));
    }
}

static void without_a_match_nothing_is_proposed() {
    TextIndex index;
    CHECK(index.propose(8, 8, true).empty());
    for (Token t = 0; t < 100; ++t) index.add(t);
    CHECK(index.propose(8, 8, true).empty());
    index.add(3);  // a single token agrees: too little
    CHECK(index.propose(8, 8, true).empty());
}

// The answer that was rolled back is gone, unless it is to be kept.
static void what_was_taken_back_is_forgotten_unless_it_is_kept() {
    const Tokens prompt{1, 2, 3, 4};
    for (int n_memory : {0, 50}) {
        TextIndex index(n_memory);
        index.assign(prompt);
        for (Token t : {60, 61, 62, 63, 64, 65}) index.add(t);
        Tokens again = prompt;
        again.insert(again.end(), {9, 60, 61});
        index.assign(again);
        const TextDraft & draft = index.propose(2, 2, false);
        CHECK_MSG(chain(draft) == (n_memory ? Tokens{62, 63} : Tokens{}), strf("memory %d", n_memory));
        index.clear();
        index.assign(again);
        CHECK(index.propose(2, 2, false).empty());
    }
}

// Borders between texts are never proposed, and what is kept of earlier ones is bounded.
static void memory_is_bounded_and_has_borders() {
    TextIndex index(200, 1000);
    for (int i = 0; i < 50; ++i) {
        Tokens text;
        for (Token t = 0; t < 300; ++t) text.push_back(t % 30 + (t < 150 ? 0 : i));
        index.assign(text);
        const TextDraft & draft = index.propose(64, 64, true);
        for (int j = 1; j < draft.size(); ++j) CHECK(draft.nodes[j].token >= 0);
        CHECK(index.size() <= 1000);
    }
    Random random(1);
    TextIndex endless(0, 4096);
    size_t most = 0;
    for (int i = 0; i < 40000; ++i) {
        endless.add(random.integer(0, 40));
        CHECK(endless.size() <= 4096);
        most = std::max(most, endless.n_bytes() - i * sizeof(Token) * 2);
    }
    CHECK_MSG(most < 4096 * 400, strf("%zu bytes", most));
}

// A token costs the same however long the text is: the best of the last blocks against the best of the first ones,
// since microseconds are another number on every machine and with every sanitizer.
static void a_token_costs_the_same_in_a_long_text() {
    using Clock = std::chrono::steady_clock;
    const int n_block = 2000, n_blocks = 30;
    for (int n_tokens : {2, 60, 30000}) {
        Random random(n_tokens);
        const Tokens text = some_text(random, n_block * n_blocks, n_tokens);
        TextIndex index;
        double first_us = 1e9, last_us = 1e9;
        for (int block = 0; block < n_blocks; ++block) {
            const auto start = Clock::now();
            for (int i = 0; i < n_block; ++i) {
                index.add(text[block * n_block + i]);
                index.propose(32, 16, true);
            }
            const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / n_block;
            double & best_us = block < n_blocks / 2 ? first_us : last_us;
            best_us = std::min(best_us, us);
        }
        std::printf("%d distinct tokens: %.2f us each at first, %.2f at last, %.0f bytes\n", n_tokens, first_us,
                    last_us, (double)index.n_bytes() / text.size());
        CHECK_MSG(last_us < 5.0 * first_us, strf("%.2f us, then %.2f us", first_us, last_us));
    }
}

int main() {
    the_longest_suffix_is_found();
    proposals_are_legal_whatever_stands_there();
    a_copy_is_proposed_to_its_end();
    a_copy_that_reaches_the_end_goes_on_with_itself();
    a_copy_goes_on_where_most_agrees();
    a_broken_copy_and_a_match_elsewhere_are_branches();
    a_copy_goes_on_behind_a_changed_token();
    a_copy_goes_on_behind_an_insertion_and_a_deletion();
    without_a_match_nothing_is_proposed();
    what_was_taken_back_is_forgotten_unless_it_is_kept();
    memory_is_bounded_and_has_borders();
    a_token_costs_the_same_in_a_long_text();
    return result();
}
