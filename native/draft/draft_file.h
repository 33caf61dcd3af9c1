// SPDX-License-Identifier: MIT
// Describes a drafter GGUF: its switches and sizes as plain values, and the tensors that its graphs use. Opening reads
// only the header and the small draft-to-target table. Opening checks that the file contains the tensors in the stated
// sizes, and that the table fits the vocabularies.
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

// Multi-head latent attention. A position has one row [kv_rank + rope_dim] in the cache. Every head computes its key
// and its value from this row. All heads share the rotated part of the key.
struct LatentSpec {
    int q_rank = 0;   // 0 = a single matrix computes the queries
    int kv_rank = 0;  // 0 = no latent attention
    int nope_dim = 0;
    int rope_dim = 0;
    int value_dim = 0;
    float scale = 0.0f;  // factor on attention scores
};

// A block drafter. A committed row of the text consists only of the target's hidden states. Every layer computes K and
// V from them, without attention. The draft tokens come from one pass over a block of rows after the text. The first
// row of the block embeds the anchor (the last token of the text), and the other rows embed the mask token. Sources:
// z-lab/dflash dflash/model.py, deepseek-ai/DeepSpec deepspec/modeling/dspark.
struct BlockSpec {
    int n_rows = 0;               // number of rows of a block, including the row of the anchor; 0 = not a block drafter
    bool anchor_first = false;    // true: row i drafts token i + 1 after the anchor; false: token i, except row 0
    std::vector<uint8_t> causal;  // [n_layer] true if a row of the layer does not see later rows of its block
    bool says_slots = true;       // the file sets anchor_first, or its kind has only one variant
    bool says_window = true;      // the file sets a window size, or our converter found no window
    bool is_gated = false;  // Laguna: a gate per head, a norm of each hidden state, and a norm before the text's keys
    int markov_rank = 0;    // DSpark: adds W2 W1[previous token] to a position's logits; 0 = off
    int selector_rank = 0;  // DFlash2: scores the likeliest tokens of neighbouring positions; 0 = off
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
    int n_embd = 0;         // width of the drafter, H in the shapes
    int n_embd_target = 0;  // width of the target's hidden states, Ht in the shapes
    int n_vocab = 0;        // size of the target's vocabulary
    int n_draft_vocab = 0;  // number of rows of the draft head
    int n_head = 0;
    int n_head_kv = 0;
    int head_dim = 0;  // with latent attention: number of values of a cached row; n_head_kv is then 1
    int n_ff = 0;
    float rms_eps = 0.0f;
    float logit_scale = 1.0f;
    float attn_scale = 0.0f;     // factor on attention scores
    float embd_scale = 1.0f;     // factor on token embeddings
    float logit_softcap = 0.0f;  // 0 = off
    float value_scale = 1.0f;    // factor on the output of attention
    bool uses_gelu = false;      // gate with GELU, otherwise with SiLU
    bool norms_values = false;  // norm without weights; layers without values use their keys from before the keys' norm
    RopeSpec rope;
    LatentSpec latent;
    int sliding_window = 0;             // 0 = off
    std::vector<uint8_t> slides;        // [n_layer] true if the layer uses the sliding window
    std::vector<float> held_out_rates;  // acceptance per depth measured in training; empty = unknown
    // Extracted layers of the target. Number k is the input of block k, counted from 0. For a target of n blocks, n + 1
    // is the output of the final norm.
    std::vector<int32_t> target_layers;
    int n_layer_target = 0;  // number of blocks of the drafter's target; 0 = unknown
    // EAGLE-1 and EAGLE-2: in every step fc reads [embedding ; hidden state]. The target's hidden state is the output
    // of its final norm. With `norm_output` (Mistral's drafters), all norms of an ordinary decoder exist. Without it,
    // two norms are missing: the first layer's norm before attention, and the norm before the head.
    bool fuses_embedding = false;
    // P-EAGLE: masked rows follow the last row with true hidden states. The hidden states of masked rows are
    // `mask_feature.weight`, and their embedding is the embedding of `mask_token`. Masked rows give more tokens in the
    // same pass, up to depth `n_parallel`. 0 = not P-EAGLE: each row reads the state of the previous row.
    int n_parallel = 0;
    Token mask_token = 0;
    BlockSpec block;
    bool norm_before_residual = false;
    bool norm_before_fc = false;
    bool fc_norm = false;
    bool norm_output = false;
    bool head_norm = true;       // EAGLE-3: the final norm before the head exists
    bool has_embedding = false;  // the file has token_embd.weight; otherwise the drafter uses the target's embeddings
    bool has_head = false;       // the file has output.weight; otherwise the drafter uses the target's head
    bool ties_head = false;      // the head is the file's token_embd.weight

    bool is_parallel() const { return n_parallel > 0; }
    bool is_block() const { return block.n_rows > 0; }
    int n_aux() const { return (int)target_layers.size(); }
    bool has_all_norms() const { return !fuses_embedding || norm_output; }
    // Returns the input width of fc.
    int64_t n_fc_in() const { return fuses_embedding ? 2 * (int64_t)n_embd : (int64_t)n_aux() * n_embd_target; }
    bool has_latent() const { return latent.kv_rank > 0; }
    // key_dim() and value_dim() return the numbers of values of a cached key head and of a cached value head. With
    // latent attention, both heads share the same memory.
    int key_dim() const { return head_dim; }
    int value_dim() const { return has_latent() ? latent.kv_rank : head_dim; }
    float score_scale() const { return has_latent() ? latent.scale : attn_scale; }
};

class EmbeddingTable;
struct DraftWeights;

// A tensor as declared by the graphs in graph.cpp.
struct DraftTensor {
    std::vector<int64_t> ne;
    bool is_required = false;
    bool is_f32 = false;                             // false = the tensor has any type that ggml can multiply with
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

    // [n_draft_vocab] target id of each draft id. If the file has no table, the ids are equal.
    const std::vector<Token> & d2t() const { return d2t_; }

    // Texts of the target's tokens; empty if the file has no tokenizer.
    const std::vector<std::string> & tokens() const { return tokens_; }

    // [n_vocab] token types of llama.cpp (1 = a normal token); may be empty.
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

// Returns a key pattern in which "{arch}" or "{i}" is replaced by `value`.
std::string fill(std::string pattern, const std::string & value);
inline std::string fill(const char * pattern, int i) {
    return fill(pattern, std::to_string(i));
}

}  // namespace eaglecpp
