// SPDX-License-Identifier: MIT
// The target's hidden states at the last positions of a conversation: the pending positions, and some positions before
// them. The drafter's row at a position embeds the next token. If a new prompt has another next token, the drafter must
// run this row again and needs the hidden state of its position. The target does not recompute this hidden state,
// because it would overwrite the position's keys and values, perhaps with another kernel's bits. The target's text must
// not depend on the drafter.
#pragma once

#include <algorithm>
#include <vector>

#include "base/hidden_states.h"

namespace eaglecpp {

class HiddenStateWindow {
  public:
    HiddenStateWindow() = default;
    HiddenStateWindow(int n_aux, int n_embd_target) : layers_(n_aux), n_embd_(n_embd_target) {
        const size_t n_row = std::max<size_t>((size_t)n_aux * n_embd_target * sizeof(float), 1);
        n_kept_ = (int)std::clamp<size_t>(n_bytes_kept / n_row, 16, 1024);
    }

    // Returns the position after the last stored row.
    int end() const { return first_ + n_rows_; }

    // Appends these `rows` of `hidden_states`. The first row has position `pos`. If `pos` is not end(), the new rows
    // replace all stored rows. After an exception, the stored rows are unchanged.
    void add(int pos, const HiddenStates & hidden_states, const std::vector<int32_t> & rows) {
        if (pos != end()) truncate(0), first_ = pos;
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

    // Appends the last of n rows, as many as the window keeps. Row 0 of the n rows has position `pos`.
    void add_last(int pos, const HiddenStates & hidden_states, int n) {
        std::vector<int32_t> rows;
        for (int i = std::max(0, n - n_kept_); i < n; ++i) rows.push_back(i);
        if (n > 0) add(pos + rows[0], hidden_states, rows);
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

    // Drops the rows at position n and all later positions.
    void truncate(int n) {
        first_ = std::min(first_, n);
        n_rows_ = std::min(n_rows_, n - first_);
        for (auto & l : layers_) l.resize((size_t)n_rows_ * n_embd_);
    }

    // Both functions drop the rows that are before position `needed` and not among the last n_kept rows. trim() drops
    // them only if there are many.
    void trim(int needed) { drop(std::min(needed, end() - n_kept_), n_kept_); }
    void keep_last(int needed, int n_kept) { drop(std::min(needed, end() - n_kept), 0); }

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
    static constexpr size_t n_bytes_kept = 4u << 20;

    // Drops the rows before position `first` if they are more than n_spared, because moving the remaining rows takes
    // time.
    void drop(int first, int n_spared) {
        const int n = first - first_;
        if (n <= n_spared) return;
        for (auto & l : layers_) l.erase(l.begin(), l.begin() + (ptrdiff_t)n * n_embd_);
        first_ += n;
        n_rows_ -= n;
    }

    std::vector<std::vector<float>> layers_;  // [n_rows, n_embd] for each extracted layer
    int n_embd_ = 0, n_kept_ = 0;
    int first_ = 0, n_rows_ = 0;
};

}  // namespace eaglecpp
