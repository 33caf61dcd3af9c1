// SPDX-License-Identifier: MIT
// The drafter's tensors by role, on one backend. The embedding table stays on the host: a round embeds only a few
// tokens, so uploading their rows costs less than storing the table on the device.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <string>
#include <vector>

#include "draft/draft_file.h"

namespace eaglecpp {

// A table of any ggml type whose rows are dequantised one at a time. The data is in the drafter's file, in the target
// (shared without a copy), or in an array of the caller.
class EmbeddingTable {
  public:
    EmbeddingTable() = default;
    // Raises Error(unsupported) if ggml cannot dequantise the type.
    EmbeddingTable(std::vector<uint8_t> data, ggml_type type, int n_embd, int n_rows);
    // Makes a table from a tensor in host memory, stored row by row. The tensor must outlive the table.
    explicit EmbeddingTable(const ggml_tensor * tensor);

    bool empty() const { return n_rows_ == 0; }
    int n_embd() const { return n_embd_; }
    int n_rows() const { return n_rows_; }
    ggml_type type() const { return type_; }

    // Returns the size of the memory that this table owns.
    size_t n_bytes() const { return own_.size(); }

    // Writes the dequantised row `id` to dst[n_embd].
    void row(int id, float * dst) const;
    // Returns row `id` as stored, in the table's own type.
    const uint8_t * stored_row(int id) const;
    size_t n_row_bytes() const { return ggml_row_size(type_, n_embd_); }

  private:
    std::vector<uint8_t> own_;
    const ggml_tensor * tensor_ = nullptr;
    ggml_type type_ = GGML_TYPE_F32;
    int n_embd_ = 0;
    int n_rows_ = 0;
};

// A matrix with its own memory on a device.
struct OwnMatrix {
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;

    // Allocates the matrix [n, n_rows] in a buffer of `buft`. Returns null if there is no room.
    ggml_tensor * make(ggml_backend_buffer_type_t buft, ggml_type type, int64_t n, int64_t n_rows);
};

struct DraftWeights {
    ggml_tensor * target_head = nullptr;  // the target's head, if the drafter has no head
    EmbeddingTable embedding;
    EmbeddingTable mask_hidden_state;  // P-EAGLE: [1, n_aux * Ht] f32, for positions that the target has not run
    // The factor for the previous token, in block drafters whose positions depend on it. It is W1 of a Markov head or
    // the selector's table of predecessors, [V, R] by target id.
    EmbeddingTable before;
    // The factor for the position's own token. It is W2 [Vd, R] by draft id if the host multiplies with W2, or the
    // selector's table [V, R].
    EmbeddingTable after;
    EmbeddingTable confidence;  // confidence head: [1, H + R], multiplied by the state of a position and a row of W1
    // The embeddings of the draft vocabulary [H, Vd], by draft id. Null unless they are on a device with enough memory.
    ggml_tensor * draft_embedding = nullptr;
    // For a block drafter: [H, n_rows - 1] f32, the embedding of the mask token, repeated for each row.
    ggml_tensor * mask_embeddings = nullptr;

    // ctx has the tensors in the file's layout. packed_ctx has the matrices packed for our CPU kernels.
    ggml_context_ptr ctx, packed_ctx;
    ggml_backend_buffer_ptr buffer, packed_buffer;

    // Returns a tensor that graphs read, or null if the file has no tensor with this name.
    ggml_tensor * find(const std::string & name) const;

    // Reads the tensors of graphs into a buffer of `buft`. With `use_kernels`, matrices for our CPU kernels go into a
    // buffer of the kernels' type. Tables go into host memory. Graphs also read W2, so W2 becomes a table only with
    // `is_remote` (DrafterOptions). Error(gguf | out_of_memory)
    static DraftWeights load(const DraftFile & file, ggml_backend_buffer_type_t buft, bool use_kernels, bool is_remote);
};

}  // namespace eaglecpp
