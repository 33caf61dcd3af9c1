// SPDX-License-Identifier: MIT
// The drafter's tensors by role, on one backend. The embedding table stays on the host: a round embeds a handful of
// tokens, and a row is cheaper to upload than the table is to hold on the device.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <string>
#include <vector>

#include "draft/draft_file.h"

namespace eaglecpp {

// Rows of a table of any ggml type, dequantised one at a time. The table may live in the drafter's file, in the
// target (shared in place), or in an array of the caller.
class EmbeddingTable {
  public:
    EmbeddingTable() = default;

    // Error(unsupported) for a type that ggml cannot dequantise
    static EmbeddingTable from_bytes(std::vector<uint8_t> data, ggml_type type, int n_embd, int n_rows);

    // `tensor` must lie in host memory, row after row, and outlive the table; else as above
    static EmbeddingTable from_tensor(const ggml_tensor * tensor);

    bool empty() const { return n_rows_ == 0; }
    int n_embd() const { return n_embd_; }
    int n_rows() const { return n_rows_; }
    ggml_type type() const { return type_; }

    // of its own
    size_t n_bytes() const { return own_.size(); }

    // writes row `id`, dequantised, to dst[n_embd]
    void row(int id, float * dst) const;
    // row `id` as it is stored
    const uint8_t * stored_row(int id) const;
    size_t n_row_bytes() const { return ggml_row_size(type_, n_embd_); }

  private:
    EmbeddingTable(ggml_type type, int n_embd, int n_rows);

    std::vector<uint8_t> own_;
    const ggml_tensor * tensor_ = nullptr;
    ggml_type type_ = GGML_TYPE_F32;
    int n_embd_ = 0;
    int n_rows_ = 0;
};

struct DraftWeights {
    ggml_tensor * target_head = nullptr;  // for a drafter without its own
    EmbeddingTable embedding;
    EmbeddingTable
        mask_feature;  // P-EAGLE: [1, n_aux * Ht] f32, the hidden states of positions that the target has not run
    // Of a block drafter whose slots depend on the token before: W1 of a Markov head or what a selector reads of a
    // predecessor, [V, R] by target id.
    EmbeddingTable before;
    // what each is multiplied with: W2 [Vd, R] by draft id, where the host does it, too, or the selector's [V, R]
    EmbeddingTable after;
    EmbeddingTable confidence;  // of the confidence head: [1, H + R], for a slot's state and a row of W1
    // On a device with room: the embeddings of the draft vocabulary [H, Vd], by its own ids; else null.
    ggml_tensor * draft_embedding = nullptr;
    // of a block drafter: [H, n_rows - 1] f32, the mask token's again and again
    ggml_tensor * mask_embeddings = nullptr;

    // what lies in the file's layout, and matrices packed for our CPU kernels
    ggml_context_ptr ctx, packed_ctx;
    ggml_backend_buffer_ptr buffer, packed_buffer;

    // a tensor of the file that graphs read; null if it has none of this name
    ggml_tensor * find(const std::string & name) const;

    // Reads the tensors of graphs into a buffer of `buft`; with `use_kernels`, the matrices that our CPU kernels take
    // go into a buffer of the kernels' own type. Tables go into host memory; W2, which graphs read, too, only with
    // `is_remote` (DrafterOptions). Error(gguf | out_of_memory)
    static DraftWeights load(const DraftFile & file, ggml_backend_buffer_type_t buft, bool use_kernels, bool is_remote);
};

}  // namespace eaglecpp
