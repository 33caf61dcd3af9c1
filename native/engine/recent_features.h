// SPDX-License-Identifier: MIT
// Features of a conversation's last rows, by position. A prompt that leaves the conversation's text at such a row needs
// its feature again: the drafter's row there embeds the token that follows, which is now another one. Running the
// target once more would give the feature, but would also write that position's keys and values again, perhaps with
// another kernel than the first time, and what the target says next must not depend on whether there is a drafter.
#pragma once

#include <algorithm>
#include <vector>

#include "base/features.h"

namespace eaglecpp {

class RecentFeatures {
  public:
    RecentFeatures() = default;
    RecentFeatures(int n_aux, int n_embd_target) : n_aux_(n_aux), n_embd_(n_embd_target) {
        if (n_aux == 0) return;
        const size_t n_row = (size_t)n_aux * n_embd_target;
        pos_.assign(std::clamp<size_t>(n_bytes_most / sizeof(float) / std::max<size_t>(n_row, 1), 16, 1024), -1);
        rows_.resize(pos_.size() * n_row);
    }

    // feature row `row` is that of position `pos`
    void add(int pos, const FeatureRows & features, int row) {
        if (n_aux_ == 0) return;
        const size_t slot = pos % pos_.size();
        pos_[slot] = pos;
        for (int a = 0; a < n_aux_; ++a) {
            std::copy_n(features.layer[a] + (size_t)row * n_embd_, n_embd_, at(slot, a));
        }
    }

    // the last rows of features[0..n), the first of which is that of position `pos`
    void add_last(int pos, const FeatureRows & features, int n) {
        for (int i = std::max(0, n - (int)pos_.size()); i < n && n_aux_ > 0; ++i) add(pos + i, features, i);
    }

    // a drafter that reads no features can have any row anew
    bool has(int pos) const { return pos >= 0 && (n_aux_ == 0 || (!pos_.empty() && pos_[pos % pos_.size()] == pos)); }

    // of a position it has
    FeatureRows row(int pos) const {
        FeatureRows out;
        for (int a = 0; a < n_aux_; ++a)
            out.layer.push_back(const_cast<RecentFeatures *>(this)->at(pos % pos_.size(), a));
        out.n_rows = 1;
        return out;
    }

    // forgets positions from n on
    void truncate(int n) {
        for (int & pos : pos_) {
            if (pos >= n) pos = -1;
        }
    }

  private:
    static constexpr size_t n_bytes_most = 8u << 20;

    float * at(size_t slot, int a) { return rows_.data() + (slot * n_aux_ + a) * n_embd_; }

    int n_aux_ = 0, n_embd_ = 0;
    std::vector<int> pos_;  // per slot; -1 = free
    std::vector<float> rows_;
};

}  // namespace eaglecpp
