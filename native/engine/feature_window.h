// SPDX-License-Identifier: MIT
// The target's features at the last positions of a conversation: those that wait for the token that follows them, and
// some before. A prompt that leaves the conversation's text at one of these needs its feature again: the drafter's row
// there embeds the token that follows, which is now another one. Running the target once more would give the feature,
// but would also write that position's keys and values again, perhaps with another kernel than the first time, and what
// the target says next must not depend on whether there is a drafter.
#pragma once

#include <algorithm>
#include <vector>

#include "base/features.h"

namespace eaglecpp {

class FeatureWindow {
  public:
    FeatureWindow() = default;
    FeatureWindow(int n_aux, int n_embd_target) : layers_(n_aux), n_embd_(n_embd_target) {
        const size_t n_row = std::max<size_t>((size_t)n_aux * n_embd_target * sizeof(float), 1);
        n_kept_ = (int)std::clamp<size_t>(n_bytes_kept / n_row, 16, 1024);
    }

    // the position behind the last row
    int end() const { return first_ + n_rows_; }

    // Appends rows of `features`, all or none, of which the first is that of position `pos`. Positions follow each
    // other: other ones replace what is there.
    void add(int pos, const FeatureRows & features, const std::vector<int32_t> & rows) {
        if (pos != end()) truncate(0), first_ = pos;
        for (auto & l : layers_) {
            const size_t n = l.size() + rows.size() * n_embd_;
            if (n > l.capacity()) l.reserve(std::max(n, 2 * l.capacity()));
        }
        for (size_t a = 0; a < layers_.size(); ++a) {
            for (int32_t r : rows) {
                const float * src = features.layer[a] + (size_t)r * n_embd_;
                layers_[a].insert(layers_[a].end(), src, src + n_embd_);
            }
        }
        n_rows_ += (int)rows.size();
    }

    // The last of n rows, of which the first is that of position `pos`, as far as they are worth keeping.
    void add_last(int pos, const FeatureRows & features, int n) {
        std::vector<int32_t> rows;
        for (int i = std::max(0, n - n_kept_); i < n; ++i) rows.push_back(i);
        if (n > 0) add(pos + rows[0], features, rows);
    }

    // a drafter that reads no features can have any row anew
    bool has(int pos) const { return pos >= 0 && (layers_.empty() || (pos >= first_ && pos < end())); }

    // from a position on that it has, or is end()
    FeatureRows from(int pos) const {
        FeatureRows out;
        for (const auto & l : layers_) out.layer.push_back(l.data() + (size_t)(pos - first_) * n_embd_);
        out.n_rows = end() - pos;
        return out;
    }

    // forgets positions from n on
    void truncate(int n) {
        first_ = std::min(first_, n);
        n_rows_ = std::min(n_rows_, n - first_);
        for (auto & l : layers_) l.resize((size_t)n_rows_ * n_embd_);
    }

    // forgets what lies far behind and before position `needed`, or all but the last n_kept
    void trim(int needed) { drop(std::min(needed, end() - n_kept_), n_kept_); }
    void keep_last(int needed, int n_kept) { drop(std::min(needed, end() - n_kept), 0); }

    // Replaces all by n_rows rows from position `first` on, layer after layer.
    void assign(int first, int n_rows, const float * values) {
        first_ = first, n_rows_ = n_rows;
        const size_t n = (size_t)n_rows * n_embd_;
        for (auto & l : layers_) l.assign(values, values + n), values += n;
    }
    int first() const { return first_; }
    int n_rows() const { return n_rows_; }
    int n_embd() const { return n_embd_; }
    const std::vector<std::vector<float>> & layers() const { return layers_; }

  private:
    static constexpr size_t n_bytes_kept = 4u << 20;

    // rows before position `first`, if these are more than n_spared: to move the others takes its time
    void drop(int first, int n_spared) {
        const int n = first - first_;
        if (n <= n_spared) return;
        for (auto & l : layers_) l.erase(l.begin(), l.begin() + (ptrdiff_t)n * n_embd_);
        first_ += n;
        n_rows_ -= n;
    }

    std::vector<std::vector<float>> layers_;  // by aux layer: [n_rows, n_embd]
    int n_embd_ = 0, n_kept_ = 0;
    int first_ = 0, n_rows_ = 0;
};

}  // namespace eaglecpp
