// SPDX-License-Identifier: MIT
// Logits that are read where the head computed them.
#pragma once

#include <ggml.h>

#include <cstddef>

namespace eaglecpp::kernels {

// Logits that llama.cpp asked a backend given to take_graphs_of() to copy, and that still lie where they were computed:
// a megabyte for a round, of which one pass is read. That memory belongs to the graph: llama.cpp writes the inputs of
// its next graph there before anybody could step in. So only logits of a graph that computes every row of a batch are
// late; no other graph follows before the next decode, and nothing but a graph (saving or moving cells, taking copies
// of a state) touches that memory.
class LateLogits {
  public:
    // before a batch of n_rows rows is decoded; 0 = its logits are copied
    void begin(int n_rows);
    // Where the logits lie of the row that llama.cpp believes to be at `copied`.
    const float * find(const float * copied) const;

    // For the hook: `t` was to be copied to `to`. True if its logits are found where they are from now on.
    bool take(const ggml_tensor * t, void * to, size_t offset, size_t n_bytes);

  private:
    int n_rows_ = 0;
    const char * from_ = nullptr;  // null = none are late
    const char * to_ = nullptr;
    size_t n_row_ = 0;  // bytes
};

}  // namespace eaglecpp::kernels
