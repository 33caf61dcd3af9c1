// SPDX-License-Identifier: MIT
// Rejected nodes leave gaps in the target's cache. Tests that these gaps are closed. The rows keep their order, so
// later results have the same bits as in target-only decoding. Moving the rows needs a small buffer, not a copy of the
// whole cache.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "../check.h"
#include "target/target.h"
#include "tiny_models.h"

using namespace eaglecpp;

static std::atomic<size_t> n_bytes_largest{0};

void * operator new(size_t n) {
    n_bytes_largest = std::max(n_bytes_largest.load(), n);
    if (void * p = std::malloc(n)) return p;
    throw std::bad_alloc();
}

void operator delete(void * p) noexcept {
    std::free(p);
}

void operator delete(void * p, size_t) noexcept {
    std::free(p);
}

static const test::TinyPair files;

static EngineOptions options_of(int n_sequences) {
    EngineOptions options = test::tiny_options(files.target, "");
    options.n_ctx = 2400;
    options.n_sequences = n_sequences;
    options.n_leaves_max = 8;
    return options;
}

static Token token_of(int conversation, int i) {
    return 1 + (i * 7 + i / 3 + conversation * (i >= 300)) % 18;
}

// Returns a tree with a root, six rejected nodes and an accepted node.
static DraftTree tree_at(int conversation, int n_past) {
    DraftTree tree(token_of(conversation, n_past));
    for (int i = 0; i < 6; ++i) tree.add(1 + i, 0, -1.0f);
    tree.add(token_of(conversation, n_past + 1), 0, -1.0f);
    return tree;
}

static void read(Target & target, const SeqRange & range, int conversation, int first, int n) {
    TargetBatch batch;
    for (int i = first; i < first + n; ++i) {
        batch.add(token_of(conversation, i), i, range, i + 1 == first + n);
        if (batch.n_rows() < 100 && i + 1 < first + n) continue;
        target.decode(batch, /*is_prompt=*/n > 1);
        batch.clear();
    }
}

// Runs row n - 1 alone, and returns its logits.
static std::vector<float> logits_behind(Target & target, const SeqRange & range, int conversation, int n) {
    read(target, range, conversation, n - 1, 1);
    return {target.logits(0), target.logits(0) + target.vocab().size()};
}

static std::vector<float> plain_logits(int conversation, int n) {
    Target target(options_of(1));
    target.open_context({});
    read(target, target.cells().seqs(0), conversation, 0, n - 1);
    return logits_behind(target, target.cells().seqs(0), conversation, n);
}

TEST(a_conversation_moves_through_a_small_buffer) {
    Target target(options_of(1));
    target.open_context({});
    CHECK(target.keeps_order());
    const SeqRange range = target.cells().seqs(0);
    read(target, range, 0, 0, 1000);
    int n = 1000;
    TargetBatch batch;
    for (int i = 0; i < 120; ++i, n += 2) {
        batch.clear();
        const DraftTree tree = tree_at(0, n);
        batch.add_tree(tree, n, range);
        target.decode(batch);
        CHECK(target.cells().keep_path(range, tree, 7, n));
    }
    const size_t n_bytes_all = llama_state_get_size(target.context());
    n_bytes_largest = 0;
    CHECK(target.cells().close_gaps_before(range));
    CHECK_MSG(n_bytes_largest > 0 && n_bytes_largest < n_bytes_all / 3,
              strf("%zu of %zu bytes", n_bytes_largest.load(), n_bytes_all));
    CHECK(target.cells().n_order_lost() == 0 && target.cells().n_rows(range) == n);
    CHECK(logits_behind(target, range, 0, n + 1) == plain_logits(0, n + 1));
}

TEST(conversations_keep_their_common_prefix_once) {
    Target target(options_of(2));
    target.open_context({});
    const SeqRange first = target.cells().seqs(0), second = target.cells().seqs(1);
    read(target, first, 0, 0, 300);
    target.cells().copy_prefix(first, second, 300);
    int n = 300;
    TargetBatch batch;
    for (int i = 0; i < 350; ++i, n += 2) {
        batch.clear();
        const DraftTree trees[] = {tree_at(0, n), tree_at(1, n)};
        batch.add_tree(trees[0], n, first);
        batch.add_tree(trees[1], n, second);
        target.decode(batch);
        CHECK(target.cells().keep_path(first, trees[0], 7, n));
        CHECK(target.cells().keep_path(second, trees[1], 7, n));
    }
    // Of 4818 cells, 300 + 2 * 700 are in use. The prefix counts once, and the rest of each conversation counts
    // separately.
    CHECK(target.cells().n_order_lost() == 0 && target.cells().has_room_for_trees());
    CHECK(target.cells().n_rows(first) == n && target.cells().n_rows(second) == n);
    CHECK(logits_behind(target, first, 0, n + 1) == plain_logits(0, n + 1));
    CHECK(logits_behind(target, second, 1, n + 1) == plain_logits(1, n + 1));
    // The first conversation ends, and the second conversation keeps the prefix.
    target.cells().truncate(first, 0);
    read(target, first, 1, 0, 40);
    CHECK(logits_behind(target, second, 1, n + 2) == plain_logits(1, n + 2));
}

// If the prefix were stored twice, the trees would not fit.
TEST(a_common_prefix_takes_room_once) {
    Target target(options_of(2));
    target.open_context({});
    const SeqRange first = target.cells().seqs(0), second = target.cells().seqs(1);
    read(target, first, 0, 0, 2390);
    target.cells().copy_prefix(first, second, 2390);
    CHECK(target.cells().has_room_for_trees());
    target.cells().truncate(second, 10);
    CHECK(target.cells().has_room_for_trees());
}
