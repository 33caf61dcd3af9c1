// SPDX-License-Identifier: MIT
#include "target/tree_batch.h"

#include <algorithm>

#include "../check.h"
#include "base/error.h"

using namespace eaglecpp;

//      0
//     / \
//    1   2
//   / \   \
//  3   4   5
static DraftTree tree() {
    DraftTree t(10);
    t.add(11, 0, -1.0f);
    t.add(12, 0, -2.0f);
    t.add(13, 1, -1.0f);
    t.add(14, 1, -1.5f);
    t.add(15, 2, -1.0f);
    return t;
}

static std::vector<int> ids(const llama_batch & b, int row) {
    return std::vector<int>(b.seq_id[row], b.seq_id[row] + b.n_seq_id[row]);
}

static void nodes_carry_the_ids_of_their_leaves() {
    TargetBatch batch;
    batch.add(7, 3, SeqRange{0, 1}, false);
    const int root = batch.add_tree(tree(), 100, SeqRange{8, 4});
    CHECK(root == 1 && batch.n_rows() == 7);
    llama_batch b;
    batch.view(b, 0);
    CHECK(b.pos[1] == 100 && b.pos[2] == 101 && b.pos[3] == 101 && b.pos[6] == 102);
    CHECK(b.logits[0] == 0 && b.logits[1] == 1);
    // leaves 3, 4, 5 take ids 8, 9, 10; the spare id 11 follows the first leaf
    auto sorted = [&](int row) {
        auto v = ids(b, row);
        std::sort(v.begin(), v.end());
        return v;
    };
    CHECK(sorted(root + 0) == (std::vector<int>{8, 9, 10, 11}));
    CHECK(sorted(root + 1) == (std::vector<int>{8, 9, 11}));
    CHECK(sorted(root + 2) == (std::vector<int>{10}));
    CHECK(sorted(root + 3) == (std::vector<int>{8, 11}));
    CHECK(sorted(root + 5) == (std::vector<int>{10}));
}

static void a_view_shows_all_rows() {
    TargetBatch batch;
    for (int i = 0; i < 5; ++i) batch.add(i, 10 + i, SeqRange{0, 2}, i == 4);
    llama_batch b;
    batch.view(b, 0);
    CHECK(b.n_tokens == 5 && b.token[3] == 3 && b.pos[4] == 14 && b.logits[4] == 1 && b.n_seq_id[3] == 2);
}

static void too_many_leaves_are_refused() {
    TargetBatch batch;
    bool refused = false;
    try {
        batch.add_tree(tree(), 0, SeqRange{0, 2});
    } catch (const Error & e) {
        refused = e.kind == ErrorKind::value;
    }
    CHECK(refused);
}

int main() {
    nodes_carry_the_ids_of_their_leaves();
    a_view_shows_all_rows();
    too_many_leaves_are_refused();
    return test::result();
}
