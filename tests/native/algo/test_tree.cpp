// SPDX-License-Identifier: MIT
#include "algo/tree.h"

#include <algorithm>
#include <numeric>

#include "../check.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

// 0 has children 1 and 2, 1 has 3 and 4, 2 has 5
static DraftTree example() {
    DraftTree t(10);
    t.add(11, 0, -1.0f);
    t.add(12, 0, -2.0f);
    t.add(13, 1, -1.0f);
    t.add(14, 1, -1.5f);
    t.add(15, 2, -1.0f);
    return t;
}

static void knows_its_shape() {
    const DraftTree t = example();
    CHECK(t.size() == 6 && t.n_draft() == 5 && !t.is_chain());
    CHECK(t.depth == (std::vector<int32_t>{0, 1, 1, 2, 2, 2}));
    CHECK(t.logp == (std::vector<float>{0.0f, -1.0f, -2.0f, -2.0f, -2.5f, -3.0f}));
    CHECK(t.leaves() == (std::vector<int32_t>{3, 4, 5}));
    CHECK(t.path(4) == (std::vector<int32_t>{0, 1, 4}) && t.path(0) == (std::vector<int32_t>{0}));
    CHECK(t.child(1, 14) == 4 && t.child(1, 15) == -1 && t.child(5, 1) == -1);
    CHECK(DraftTree(3).is_chain() && DraftTree(3).leaves() == (std::vector<int32_t>{0}));
    DraftTree broken(1);
    CHECK_THROWS(broken.add(2, 1, 0.0f), "parent 1");
    CHECK_THROWS(broken.add(2, -1, 0.0f), "parent -1");
}

static void takes_nodes_in_the_order_given() {
    const DraftTree t = example().take({2, 5, 1});
    CHECK(t.token == (std::vector<Token>{10, 12, 15, 11}) && t.parent == (std::vector<int32_t>{-1, 0, 1, 0}));
    CHECK(t.depth == (std::vector<int32_t>{0, 1, 2, 1}) && t.logp[2] == -3.0f);
}

int main() {
    knows_its_shape();
    takes_nodes_in_the_order_given();
    return result();
}
