// SPDX-License-Identifier: MIT
// Mean chances of acceptance by depth and rank in one text, used to judge levels that are not drafted yet.
#pragma once

#include <algorithm>
#include <array>

#include "algo/acceptance_model.h"

namespace eaglecpp {

class MeanChances {
  public:
    static constexpr int n_ranks = AcceptanceModel::n_ranks_max;

    MeanChances() {
        for (auto & ranks : means_) {
            for (int r = 0; r < n_ranks; ++r) ranks[r] = r == 0 ? 0.6f : 0.12f / (float)(r * r);
        }
    }

    // of the rank-th child (from 1) of a frontier node at depth - 1, given that node
    double at(int depth, int rank) const { return of(depth)[std::clamp(rank, 1, n_ranks) - 1]; }

    const std::array<float, n_ranks> & of(int depth) const { return means_[row(depth)]; }

    // The n children of a node that is reached with chance p have chances a[].
    void learn(int depth, const double * a, int n, float p);

  private:
    static constexpr int n_depths = 12;
    static int row(int depth) { return std::clamp(depth, 1, n_depths) - 1; }

    std::array<std::array<float, n_ranks>, n_depths> means_;  // [depth - 1][rank - 1]
    std::array<int, n_depths> n_seen_{};                      // nodes whose children were seen, by depth - 1
};

}  // namespace eaglecpp
