// SPDX-License-Identifier: MIT
#include "algo/row_counts.h"

#include <algorithm>

namespace eaglecpp {

void RowCounts::set(int n_rows, bool is_exact) {
    const auto at = std::lower_bound(points_.begin(), points_.end(), n_rows,
                                     [](const std::pair<int, bool> & p, int n) { return p.first < n; });
    if (at != points_.end() && at->first == n_rows) {
        at->second = at->second && is_exact;
    } else {
        points_.insert(at, {n_rows, is_exact});
    }
}

bool RowCounts::allows(int n_rows) const {
    if (n_rows <= 1) return true;
    bool is_below_exact = true;  // one row
    for (const auto & [n, is_exact] : points_) {
        if (n == n_rows) return is_exact;
        if (n > n_rows) return is_below_exact && is_exact;
        is_below_exact = is_exact;
    }
    return false;
}

int RowCounts::largest(int n_rows) const {
    while (n_rows > 1 && !allows(n_rows)) --n_rows;
    return std::max(n_rows, 1);
}

int RowCounts::next(int n_rows) const {
    const int n_most = points_.empty() ? 1 : points_.back().first;
    for (int n = n_rows + 1; n <= n_most; ++n) {
        if (allows(n)) return n;
    }
    return 0;
}

int RowCounts::first_refused(int n_rows) const {
    for (int n = 2; n <= n_rows; ++n) {
        if (!allows(n)) return n;
    }
    return 0;
}

std::string RowCounts::to_string() const {
    const int n_most = points_.empty() ? 1 : points_.back().first;
    std::string out;
    for (int n = 1; n <= n_most; ++n) {
        if (!allows(n)) continue;
        const int first = n;
        while (n < n_most && allows(n + 1)) ++n;
        out += (out.empty() ? "" : ", ") + std::to_string(first);
        if (n > first) out += "-" + std::to_string(n);
    }
    return out;
}

}  // namespace eaglecpp
