// SPDX-License-Identifier: MIT
#include "algo/windows.h"

#include "../check.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

// Returns the share of the last 1,000 rounds that use a window. `wide` is the acceptance probability without a window,
// and `narrow` the acceptance probability with a window.
double share_narrow(DraftWindows & windows, int n_tokens, double wide, double narrow) {
    Random random(7);
    int n = 0;
    for (int round = 0; round < 2000; ++round) {
        const int window = windows.next(n_tokens);
        int n_accepted = 0;
        while (n_accepted < 5 && random.real() < (window > 0 ? narrow : wide)) ++n_accepted;
        windows.learn(n_tokens, window, std::min(n_accepted + 1, 5), n_accepted);
        n += round >= 1000 && window > 0;
    }
    return n / 1000.0;
}

}  // namespace

TEST(keeps_the_better_window_and_retries_the_other) {
    for (double wide : {0.4, 0.7}) {
        const double narrow = 1.1 - wide;
        DraftWindows windows;
        const double share = share_narrow(windows, 5000, wide, narrow);
        CHECK_MSG((share > 0.5) == (narrow > wide), std::to_string(share));
        CHECK_MSG(std::min(share, 1.0 - share) > 0.02 && std::min(share, 1.0 - share) < 0.1, std::to_string(share));
    }
}

TEST(learns_each_length_separately_and_notices_a_change) {
    DraftWindows windows;
    CHECK(share_narrow(windows, 1100, 0.7, 0.4) < 0.1);
    CHECK(share_narrow(windows, 5000, 0.4, 0.7) > 0.9);
    CHECK(share_narrow(windows, 1100, 0.7, 0.4) < 0.1);
    CHECK(share_narrow(windows, 5000, 0.7, 0.4) < 0.1);
    CHECK(share_narrow(windows, 3000000, 0.4, 0.7) > 0.9);
}

TEST(short_texts_need_no_window) {
    DraftWindows windows;
    CHECK(share_narrow(windows, 1023, 0.1, 0.9) == 0.0);
}

TEST(a_window_that_is_set_is_kept) {
    DraftWindows windows(64), whole(0, /*can_narrow=*/false), automatic;
    CHECK(windows.next(5000) == 64 && windows.next(5000, /*requested=*/16) == 16);
    CHECK(share_narrow(whole, 5000, 0.1, 0.9) == 0.0);
    CHECK(share_narrow(automatic, 5000, 0.1, 0.9) > 0.9);
    CHECK(automatic.next(5000, /*requested=*/-1, /*is_free=*/false) == 0);
}

TEST(the_narrower_window_limits_a_row) {
    CHECK(DraftWindows::first_seen(99, 0, 0) == 0 && DraftWindows::first_seen(5, 8, 0) == 0);
    CHECK(DraftWindows::first_seen(99, 8, 0) == 92 && DraftWindows::first_seen(99, 0, 8) == 92);
    CHECK(DraftWindows::first_seen(99, 16, 8) == 92 && DraftWindows::first_seen(99, 8, 16) == 92);
}

TEST(an_explicit_window_teaches_nothing) {
    DraftWindows windows, other;
    for (int round = 0; round < 1000; ++round) windows.learn(5000, 16, 5, 0);
    CHECK(share_narrow(windows, 5000, 0.4, 0.45) == share_narrow(other, 5000, 0.4, 0.45));
}
