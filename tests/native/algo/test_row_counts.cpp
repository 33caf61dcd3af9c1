// SPDX-License-Identifier: MIT
#include "algo/costs.h"

#include "../check.h"

using namespace eaglecpp;

static void unmeasured_counts_are_exact_only_alone() {
    const RowCounts counts;
    CHECK(!counts.is_measured() && counts.allows(0) && counts.allows(1) && !counts.allows(2));
    CHECK(counts.largest(64) == 1 && !counts.allows_any(1, 64) && counts.to_string() == "1");
}

static void between_two_measured_counts_both_must_be_exact() {
    RowCounts counts;
    for (int n : {16, 2, 5, 3, 8}) counts.set(n, n != 8);
    counts.set(4, true);
    for (int n : {1, 2, 3, 4, 5, 16}) CHECK_MSG(counts.allows(n), std::to_string(n));
    for (int n : {6, 7, 8, 9, 15, 17, 64}) CHECK_MSG(!counts.allows(n), std::to_string(n));
    CHECK(counts.largest(3) == 3 && counts.largest(8) == 5 && counts.largest(64) == 16);
    CHECK(counts.next(0) == 1 && counts.next(4) == 5 && counts.next(5) == 16 && counts.next(16) == 0);
    CHECK(counts.to_string() == "1-5, 16");
    CHECK(counts.allows_all(5) && !counts.allows_all(6));
    CHECK(counts.allows_any(1, 2) && counts.allows_any(5, 16) && !counts.allows_any(5, 15));
}

static void one_batch_that_parts_is_enough() {
    RowCounts counts;
    counts.set(4, true);
    counts.set(4, false);
    counts.set(4, true);
    CHECK(!counts.allows(4) && counts.points().size() == 1);
    CHECK(!counts.allows(2));  // between 1 and 4
}

int main() {
    unmeasured_counts_are_exact_only_alone();
    between_two_measured_counts_both_must_be_exact();
    one_batch_that_parts_is_enough();
    return eaglecpp::test::result();
}
