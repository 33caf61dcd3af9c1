// SPDX-License-Identifier: MIT
// Describes a drafter GGUF: its switches and sizes as plain values, and the tensors that its graphs use. Opening reads
// only the header and the small draft-to-target table, and checks everything: the sizes agree with the tensors, the
// tensors with the file, and the table with the vocabularies.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/types.h"
#include "gguf/reader.h"

namespace eaglecpp {

struct RopeSpec {
    bool neox = false;  // RoPE rotates halves (neox) instead of neighbouring pairs (norm)
    int n_rot = 0;
    float freq_base = 10000.0f;
    float freq_scale = 1.0f;   // 1 / scaling factor
    float ext_factor = 0.0f;   // 1 for YaRN
    float attn_factor = 1.0f;  // factor on cos and sin, in addition to ggml's own factor for YaRN
    float beta_fast = 32.0f;
    float beta_slow = 1.0f;
    int n_ctx_orig = 0;
};

// Multi-head latent attention. A position has one row [kv_rank + rope_dim] in the cache, from which every head computes
// its key and value. All heads share the rotated part of the key.
struct LatentSpec {
    int q_rank = 0;   // 0 = a single matrix computes the queries
    int kv_rank = 0;  // 0 = no latent attention
    int nope_dim = 0;
    int rope_dim = 0;
    int value_dim = 0;
    float scale = 0.0f;  // factor on attention's scores
};

// A block drafter. A row of the text consists only of the target's hidden states: K and V of every layer, without
// attention. The tokens come from one pass over a block of rows after the text. The first row embeds the anchor (the
// last token of the text), the other rows embed the mask token (arithmetic: z-lab/dflash dflash/model.py,
// deepseek-ai/DeepSpec deepspec/modeling/dspark).
struct BlockSpec {
    int n_rows = 0;               // rows of a block, including the anchor's; 0 = not a block drafter
    bool anchor_first = false;    // row i gives token i + 1 after the anchor; if false, token i (row 0 none)
    std::vector<uint8_t> causal;  // [n_layer] true if rows do not see later rows of their block
    bool says_slots = true;       // the file has this switch, or its kind has only one variant
    bool says_window = true;      // the file has a window, or our converter found none
    bool is_gated = false;        // Laguna: a gate per head; norms of each hidden state and before the text's keys
    int markov_rank = 0;          // DSpark: adds W2 W1[previous token] to a position's logits; 0 = off
    int selector_rank = 0;        // DFlash2: scores of neighbouring positions' likeliest tokens; 0 = off
    int selector_top_k = 0;
    int n_taps = 0, n_group = 0;  // DFlash2: sizes of the convolutions over the block's rows; 0 = off

    int n_slots() const { return n_rows - (anchor_first ? 0 : 1); }
    const char * kind() const { return selector_rank > 0 ? "DFlash2" : markov_rank > 0 ? "DSpark" : "DFlash"; }
    // Returns true if the distribution of a position in the block depends on the previous token.
    bool is_conditional() const { return markov_rank > 0 || selector_rank > 0; }
};

struct DraftSpec {
    std::string arch;
    std::string name;
    int n_layer = 0;
    int n_ctx_train = 0;
    int n_embd = 0;         // H
    int n_embd_target = 0;  // Ht
    int n_vocab = 0;        // size of the target's vocabulary
    int n_draft_vocab = 0;  // rows of the draft head
    int n_head = 0;
    int n_head_kv = 0;
    int head_dim = 0;  // with latent attention: values of a cached row, and n_head_kv is 1
    int n_ff = 0;
    float rms_eps = 0.0f;
    float logit_scale = 1.0f;
    float attn_scale = 0.0f;     // factor on attention's scores
    float embd_scale = 1.0f;     // factor on token embeddings
    float logit_softcap = 0.0f;  // 0 = off
    float value_scale = 1.0f;    // factor on attention's output
    bool uses_gelu = false;      // gate by GELU, otherwise SiLU
    bool norms_values = false;   // norm without weights; a layer without values uses its keys before their norm
    RopeSpec rope;
    LatentSpec latent;
    int sliding_window = 0;             // 0 = off
    std::vector<uint8_t> slides;        // [n_layer] true if the layer uses the window
    std::vector<float> held_out_rates;  // acceptance per depth measured in training; empty = unknown
    // Extracted layers. k is the input of block k, counted from 0; n + 1, where n is the number of blocks, is the
    // output of the final norm.
    std::vector<int32_t> target_layers;
    int n_layer_target = 0;  // blocks of the drafter's target; 0 = unknown
    // EAGLE-1 and 2: in every step fc reads [embedding ; hidden state]. The target's hidden state is the output of its
    // final norm. Without `norm_output` the first layer has no norm before attention, and the head reads the last
    // layer's output without a norm. With `norm_output` (Mistral's drafters) both have a norm, as in any decoder.
    bool fuses_embedding = false;
    // P-EAGLE: masked rows follow the last row with true hidden states. Their hidden states are `mask_feature.weight`,
    // and their embedding is that of `mask_token`. They give the further tokens in the same pass, up to depth
    // `n_parallel`. 0 = not P-EAGLE: each row reads the state of the previous row.
    int n_parallel = 0;
    Token mask_token = 0;
    BlockSpec block;
    bool norm_before_residual = false;
    bool norm_before_fc = false;
    bool fc_norm = false;
    bool norm_output = false;
    bool head_norm = true;       // EAGLE-3: the head reads the state after a last norm; false = without this norm
    bool has_embedding = false;  // the file has token_embd.weight; otherwise the drafter uses the target's
    bool has_head = false;       // the file has output.weight; otherwise the drafter uses the target's
    bool ties_head = false;      // the head is the file's token_embd.weight

    bool is_parallel() const { return n_parallel > 0; }
    bool is_block() const { return block.n_rows > 0; }
    int n_aux() const { return (int)target_layers.size(); }
    bool has_all_norms() const { return !fuses_embedding || norm_output; }
    // Input width of fc.
    int64_t n_fc_in() const { return fuses_embedding ? 2 * (int64_t)n_embd : (int64_t)n_aux() * n_embd_target; }
    bool has_latent() const { return latent.kv_rank > 0; }
    // Numbers of values of a cached key head and of a cached value head. With latent attention both heads are the same
    // memory.
    int key_dim() const { return head_dim; }
    int value_dim() const { return has_latent() ? latent.kv_rank : head_dim; }
    float score_scale() const { return has_latent() ? latent.scale : attn_scale; }
};

class EmbeddingTable;
struct DraftWeights;

// A tensor as declared by the graphs (graph.cpp).
struct DraftTensor {
    std::vector<int64_t> ne;
    bool is_required = false;
    bool is_f32 = false;                             // if false, any type that ggml can multiply with
    bool is_on_device = false;                       // graphs read the tensor
    EmbeddingTable DraftWeights::* table = nullptr;  // the host reads the tensor, row by row
};
using DraftTensors = std::map<std::string, DraftTensor>;

class DraftFile {
  public:
    // Opens and checks a file. Error(not_found | gguf | unsupported)
    explicit DraftFile(const std::string & path);

    const GgufReader & gguf() const { return gguf_; }
    const std::string & path() const { return gguf_.path(); }
    const DraftSpec & spec() const { return spec_; }
    const DraftTensors & tensors() const { return tensors_; }

    // [n_draft_vocab] target id of each draft id; identity if the file has no table.
    const std::vector<Token> & d2t() const { return d2t_; }

    // Token texts of the drafter's target; empty if the file has no tokenizer.
    const std::vector<std::string> & tokens() const { return tokens_; }

    // [n_vocab] llama.cpp token types, 1 = normal; may be empty.
    const std::vector<int32_t> & token_types() const { return token_types_; }

  private:
    std::string key(const char * pattern) const;
    void refuse_if(bool is_wrong, const char * pattern, const std::string & what,
                   ErrorKind kind = ErrorKind::gguf) const;
    int size(const char * pattern, int64_t max, std::optional<int> otherwise = {}) const;
    Token token(const char * pattern) const;
    float positive(const char * pattern, std::optional<float> otherwise = {}) const;
    bool flag(const char * pattern, bool otherwise = false) const;
    std::vector<uint8_t> flags_of_layers(const char * pattern, bool otherwise) const;
    void read_sizes();
    void read_heads();
    void read_latent();
    void read_rope();
    void read_switches();
    void read_block();
    void read_arithmetic();
    void check_fused_embedding() const;
    void check_tensors() const;
    void read_d2t();

    GgufReader gguf_;
    DraftSpec spec_;
    DraftTensors tensors_;
    std::vector<Token> d2t_;
    std::vector<std::string> tokens_;
    std::vector<int32_t> token_types_;
};

// Returns a key pattern with its "{arch}" or "{i}" replaced by `value`.
std::string fill(std::string pattern, const std::string & value);
inline std::string fill(const char * pattern, int i) {
    return fill(pattern, std::to_string(i));
}

}  // namespace eaglecpp
