// SPDX-License-Identifier: MIT
// The numbers of rows for which a row of a batch has the same bits as it has alone ("exact"). Kernels change at certain
// numbers (ggml's repacked products from 4 rows on, F32 products from 2), so exactness is measured at some of them; a
// number between two measured ones counts as exact only if both are, one beyond the largest never does.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace eaglecpp {

class RowCounts {
  public:
    // nothing measured: one row alone is exact
    RowCounts() = default;

    void set(int n_rows, bool is_exact);
    bool is_measured() const { return !points_.empty(); }

    bool allows(int n_rows) const;

    // the largest exact number not above n_rows, at least 1
    int largest(int n_rows) const;

    // the smallest exact number above n_rows, 0 if there is none
    int next(int n_rows) const;

    // every number up to n_rows is exact
    bool allows_all(int n_rows) const { return first_refused(n_rows) == 0; }

    // an exact number in (n_above, n_most] exists
    bool allows_any(int n_above, int n_most) const { return largest(n_most) > n_above; }

    // "1-3, 8" up to the largest that was measured
    std::string to_string() const;

    const std::vector<std::pair<int, bool>> & points() const { return points_; }

  private:
    int first_refused(int n_rows) const;

    std::vector<std::pair<int, bool>> points_;  // by number of rows
};

}  // namespace eaglecpp
