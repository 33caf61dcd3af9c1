// SPDX-License-Identifier: MIT
// The drafter's tensors by role, on one backend. The embedding table stays on the host: a round embeds a handful of
// tokens, and a row is cheaper to upload than the table is to hold on the device.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <string>
#include <vector>

#include "gguf/draft_file.h"

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

struct DraftLayer {
    ggml_tensor * attn_norm = nullptr;    // [H] token embedding (layer 0) or input (others, and EAGLE-1's if any)
    ggml_tensor * attn_norm_2 = nullptr;  // [H] feature, layer 0 only; EAGLE-1: none
    ggml_tensor *wq = nullptr, *wk = nullptr, *wv = nullptr, *wo = nullptr;
    ggml_tensor *bq = nullptr, *bk = nullptr, *bv = nullptr, *bo = nullptr;  // optional
    ggml_tensor *q_norm = nullptr, *k_norm = nullptr;                        // optional, [head_dim]
    // latent attention: no wk and wv; no wq either where queries are of low rank
    ggml_tensor *wq_a = nullptr, *q_a_norm = nullptr, *wq_b = nullptr;
    ggml_tensor *wkv_a = nullptr, *kv_a_norm = nullptr;  // [U -> kv_rank + rope_dim]
    ggml_tensor *wk_b = nullptr, *wv_b = nullptr;        // [nope_dim, kv_rank, n_head], [kv_rank, value_dim, n_head]
    ggml_tensor * ffn_norm = nullptr;
    ggml_tensor *post_attn_norm = nullptr, *post_ffn_norm = nullptr;  // optional
    ggml_tensor *gate = nullptr, *up = nullptr, *down = nullptr;
    ggml_tensor *gate_b = nullptr, *up_b = nullptr, *down_b = nullptr;  // optional
};

struct DraftWeights {
    ggml_tensor * fc = nullptr;
    ggml_tensor * fc_bias = nullptr;      // optional
    std::vector<ggml_tensor *> fc_norm;   // [n_aux] or empty
    ggml_tensor * input_norm = nullptr;   // norm_before_fc
    std::vector<float> mask_feature;      // P-EAGLE: [n_aux * Ht], for rows whose features nobody knows yet
    ggml_tensor * output_norm = nullptr;  // not in EAGLE-1 without norms, nor without head_norm
    ggml_tensor * head = nullptr;         // own or the target's
    ggml_tensor * rope_freqs = nullptr;   // optional
    std::vector<DraftLayer> layers;
    EmbeddingTable embedding;
    // On a device with room: the embeddings of the draft vocabulary [H, Vd], by its own ids; else null.
    ggml_tensor * draft_embedding = nullptr;
    ggml_tensor * noise = nullptr;  // there, too: see NoiseRows

    // what lies in the file's layout, and matrices packed for our CPU kernels
    ggml_context_ptr ctx, packed_ctx;
    ggml_backend_buffer_ptr buffer, packed_buffer;

    // Reads all tensors but the embedding into a buffer of `buft`; with `use_kernels`, the matrices that our CPU
    // kernels take go into a buffer of the kernels' own type. The embedding goes into host memory if the file has it.
    // `head` stays null if the file has none. Error(gguf | out_of_memory)
    static DraftWeights load(const DraftFile & file, ggml_backend_buffer_type_t buft, bool use_kernels);
};

}  // namespace eaglecpp
