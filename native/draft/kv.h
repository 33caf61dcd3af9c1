// SPDX-License-Identifier: MIT
// The drafter's memory of one sequence: keys and values of every layer, and the states that later rows read.
//
// For p < n_rows, K/V slot p holds the row of position p, which has true hidden states. The next `n_draft_rows_max`
// slots hold the draft rows of the current round. The next commit overwrites the draft rows, so a rollback only sets
// n_rows. State slot 0 belongs to the last committed row, and state slot 1 + j belongs to draft row j. K/V and states
// each have one extra slot for padding rows. In a block drafter with a Markov head, the states are the logits of its
// draft positions. The cache has no states unless GraphForm::keeps_states is true.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <cstdint>
#include <vector>

#include "draft/draft_file.h"

namespace eaglecpp {

class DraftKv {
  public:
    // Allocates slots for n_ctx committed rows and n_draft_rows_max draft rows, or no memory if `buft` is null.
    // Error(out_of_memory)
    DraftKv(const DraftSpec & spec, int n_ctx, int n_draft_rows_max, ggml_type type, ggml_backend_buffer_type_t buft,
            bool keeps_states);

    const std::vector<ggml_tensor *> & k() const { return k_; }  // keys of each layer, [key_dim * n_head_kv, n_slots]
    // Values of each layer, [value_dim * n_head_kv, n_slots]. Latent attention has no separate values: they are the
    // first value_dim numbers of the keys.
    const std::vector<ggml_tensor *> & v() const { return v_; }
    ggml_tensor * state() const { return state_; }  // [H, 2 + n_draft_rows_max]; with a Markov head [Vd, n_slots + 1]
    int idle_slot() const { return n_ctx_ + n_draft_rows_max_; }
    int idle_state() const { return (int)state_->ne[1] - 1; }

    // Resets the cache for another conversation.
    void clear();

    // save_rows() appends the first n rows of all layers, without the states, to `out`. load_rows() replaces this
    // cache's rows by saved rows of a cache with the same sizes.
    void save_rows(int n, std::vector<uint8_t> & out) const;
    void load_rows(ByteView bytes, int n);
    size_t n_bytes_of(int n) const;  // number of bytes of the first n rows
    // Number of bytes of the whole cache, without padding for alignment on the device.
    size_t n_bytes() const { return n_bytes_of(n_slots_) + (state_ ? ggml_nbytes(state_) : 0); }

    int n_ctx() const { return n_ctx_; }
    int n_slots() const { return n_slots_; }
    int n_draft_rows_max() const { return n_draft_rows_max_; }

    // Returns the number of slots that a graph reads: `n_used`, padded so that graphs have few shapes. With `n_steps` >
    // 0, there are at most n_steps sizes between a number and twice this number. Devices need n_steps > 0 if building a
    // graph costs more than reading masked slots.
    static int pad(int n_used, int n_steps = 0) {
        int step = n_pad;
        while (n_steps > 0 && 2 * step * n_steps <= n_used) step *= 2;
        return (n_used + step - 1) / step * step;
    }

    int n_rows = 0;  // number of committed rows

  private:
    static constexpr int n_pad = 256;

    template <typename F>
    void each_tensor(F && f) const;

    int n_ctx_;
    int n_draft_rows_max_;
    int n_slots_;  // padded, so that every padded view of n_kv slots is inside the cache
    std::vector<ggml_tensor *> k_, v_;
    ggml_tensor * state_ = nullptr;
    ggml_context_ptr ctx_;
    ggml_backend_buffer_ptr buffer_;
};

}  // namespace eaglecpp
