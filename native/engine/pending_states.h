// SPDX-License-Identifier: MIT
// The target's hidden states at the last positions of a conversation, which the drafter has not read yet.
#pragma once

#include <algorithm>
#include <vector>

#include "base/hidden_states.h"

namespace eaglecpp {

class PendingStates {
  public:
    PendingStates() = default;
    PendingStates(int n_aux, int n_embd_target) : layers_(n_aux), n_embd_(n_embd_target) {}

    // Returns the position after the last stored row.
    int end() const { return first_ + n_rows_; }

    // Appends these `rows` of `hidden_states`. The first row has position `pos`. If `pos` is not end(), the new rows
    // replace all stored rows. After an exception, the stored rows are unchanged.
    void add(int pos, const HiddenStates & hidden_states, const std::vector<int32_t> & rows) {
        if (pos != end()) restart(pos);
        for (auto & l : layers_) {
            const size_t n = l.size() + rows.size() * n_embd_;
            if (n > l.capacity()) l.reserve(std::max(n, 2 * l.capacity()));
        }
        for (size_t a = 0; a < layers_.size(); ++a) {
            for (int32_t r : rows) {
                const float * src = hidden_states.layer[a] + (size_t)r * n_embd_;
                layers_[a].insert(layers_[a].end(), src, src + n_embd_);
            }
        }
        n_rows_ += (int)rows.size();
    }

    // Returns true if the hidden state of this position is stored. If the drafter reads no hidden states (layers_ is
    // empty), every position counts as stored, because such a drafter can compute any row again.
    bool has(int pos) const { return pos >= 0 && (layers_.empty() || (pos >= first_ && pos < end())); }

    // Returns the stored rows from position `pos` on. `pos` must be a stored position or end().
    HiddenStates from(int pos) const {
        HiddenStates out;
        for (const auto & l : layers_) out.layer.push_back(l.data() + (size_t)(pos - first_) * n_embd_);
        out.n_rows = end() - pos;
        return out;
    }

    // Returns how many of n drafter rows stay if the text changes after the row n - 1, which embeds the next token. A
    // drafter that reads only tokens runs this row again. For other drafters, its hidden state is no longer stored.
    int n_reusable(int n) const { return layers_.empty() ? std::max(n - 1, 0) : n; }

    // Drops all rows. The next row has position `pos`.
    void restart(int pos) {
        truncate(0);
        first_ = pos;
    }

    // Drops the rows at position n and all later positions.
    void truncate(int n) {
        first_ = std::min(first_, n);
        n_rows_ = std::min(n_rows_, n - first_);
        for (auto & l : layers_) l.resize((size_t)n_rows_ * n_embd_);
    }

    // Drops the rows before this position.
    void drop_before(int pos) {
        const int n = std::min(pos - first_, n_rows_);
        if (n <= 0) return;
        for (auto & l : layers_) l.erase(l.begin(), l.begin() + (ptrdiff_t)n * n_embd_);
        first_ += n;
        n_rows_ -= n;
    }

    // Replaces all stored rows by n_rows rows, the first of which has position `first`. `values` has the rows of the
    // first layer, then the rows of the next layer, and so on.
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
    std::vector<std::vector<float>> layers_;  // [n_rows, n_embd] for each extracted layer
    int n_embd_ = 0;
    int first_ = 0, n_rows_ = 0;
};

}  // namespace eaglecpp
