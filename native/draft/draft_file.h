// SPDX-License-Identifier: MIT
// A drafter GGUF: its switches and sizes as plain values, and the tensors that its graphs use. Opening reads the header
// and the small draft-to-target table only. Everything is checked here, once: after the constructor the sizes agree
// with the tensors, the tensors with the file, and the table with the vocabularies.
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
    bool neox = false;  // halves are rotated (neox) or neighbouring pairs (norm)
    int n_rot = 0;
    float freq_base = 10000.0f;
    float freq_scale = 1.0f;   // 1 / scaling factor
    float ext_factor = 0.0f;   // 1 for YaRN
    float attn_factor = 1.0f;  // multiplies cos and sin, in addition to ggml's own factor for YaRN
    float beta_fast = 32.0f;
    float beta_slow = 1.0f;
    int n_ctx_orig = 0;
};

// Multi-head latent attention: a position leaves one row [kv_rank + rope_dim] in the cache, from which every head makes
// its key and value. All heads share the rotated part of the key.
struct LatentSpec {
    int q_rank = 0;   // 0: queries come from one matrix
    int kv_rank = 0;  // 0: there is no latent attention
    int nope_dim = 0;
    int rope_dim = 0;
    int value_dim = 0;
    float scale = 0.0f;  // of the scores
};

// A block drafter. A row of the text is made of the target's features alone: K and V of every layer, with no attention.
// The tokens come from one pass over a block of rows behind them, which embed the anchor, the last token of the text,
// and then the mask token (arithmetic: z-lab/dflash dflash/model.py, deepseek-ai/DeepSpec deepspec/modeling/dspark).
struct BlockSpec {
    int n_rows = 0;               // of a block, the anchor's included; 0 = not a block drafter
    bool anchor_first = false;    // row i gives the token i + 1 behind the anchor, else i: row 0 gives none
    std::vector<uint8_t> causal;  // [n_layer] a row sees no later one of its block
    bool says_slots = true;       // the file says so itself, or there is one way for its kind
    bool says_window = true;      // the file has a window, or our converter found none
    bool is_gated = false;        // Laguna: a gate per head, norms of each feature and before keys of the text
    int markov_rank = 0;          // DSpark: logits of a slot gain W2 W1[token before]; 0 = none
    int selector_rank = 0;        // DFlash2: scores between neighbouring slots' likeliest tokens; 0 = none
    int selector_top_k = 0;
    int n_taps = 0, n_group = 0;  // DFlash2: of the convolutions over the block's rows; 0 = none

    int n_slots() const { return n_rows - (anchor_first ? 0 : 1); }
    const char * kind() const { return selector_rank > 0 ? "DFlash2" : markov_rank > 0 ? "DSpark" : "DFlash"; }
    // what a slot gives depends on the token in the one before
    bool is_conditional() const { return markov_rank > 0 || selector_rank > 0; }
};

struct DraftSpec {
    std::string arch;
    std::string name;
    int n_layer = 0;
    int n_ctx_train = 0;
    int n_embd = 0;         // H
    int n_embd_target = 0;  // Ht
    int n_vocab = 0;        // the target's
    int n_draft_vocab = 0;  // rows of the draft head
    int n_head = 0;
    int n_head_kv = 0;
    int head_dim = 0;  // latent attention: of a cached row, with n_head_kv 1
    int n_ff = 0;
    float rms_eps = 0.0f;
    float logit_scale = 1.0f;
    float attn_scale = 0.0f;     // factor on the scores
    float embd_scale = 1.0f;     // factor on token embeddings
    float logit_softcap = 0.0f;  // 0 = none
    float value_scale = 1.0f;    // factor on what attention gives
    bool uses_gelu = false;      // else SiLU
    bool norms_values = false;   // without weights; a layer without values of its own takes its keys, before their norm
    RopeSpec rope;
    LatentSpec latent;
    int sliding_window = 0;             // 0 = none
    std::vector<uint8_t> slides;        // [n_layer] layer uses the window
    std::vector<float> held_out_rates;  // acceptance per depth that its training measured; empty: not known
    // boundary ids: k is the residual stream entering 0-based block k; n + 1 is what leaves the final norm
    std::vector<int32_t> target_layers;
    int n_layer_target = 0;  // blocks of the target it was made for; 0 = not recorded
    // EAGLE-1 and 2: fc takes [embedding ; feature] in every step, and the one feature is the target's last state after
    // the final norm. Without `norm_output` the first layer has no norm before attention, and the head reads the last
    // layer's output without a norm; with it (Mistral's) both are normed, as in any decoder.
    bool fuses_embedding = false;
    // P-EAGLE: the last row with true features is followed by rows that pair the features of `mask_feature.weight` with
    // the embedding of `mask_token`; they give the tokens further on, all in one pass. `n_parallel` is the largest
    // depth reached that way; 0 = not P-EAGLE: each row is fed with the state of the one before.
    int n_parallel = 0;
    Token mask_token = 0;
    BlockSpec block;
    bool norm_before_residual = false;
    bool norm_before_fc = false;
    bool fc_norm = false;
    bool norm_output = false;
    bool head_norm = true;       // EAGLE-3: false = no last norm, the head reads the state as it is
    bool has_embedding = false;  // own token_embd.weight, else the target's
    bool has_head = false;       // own output.weight, else the target's
    bool ties_head = false;      // its head is its own token_embd.weight

    bool is_parallel() const { return n_parallel > 0; }
    bool is_block() const { return block.n_rows > 0; }
    int n_aux() const { return (int)target_layers.size(); }
    bool has_all_norms() const { return !fuses_embedding || norm_output; }
    // width of what fc takes
    int64_t n_fc_in() const { return fuses_embedding ? 2 * (int64_t)n_embd : (int64_t)n_aux() * n_embd_target; }
    bool has_latent() const { return latent.kv_rank > 0; }
    // values of a cached key head and of a cached value head; those of latent attention are the same memory
    int key_dim() const { return head_dim; }
    int value_dim() const { return has_latent() ? latent.kv_rank : head_dim; }
    float score_scale() const { return has_latent() ? latent.scale : attn_scale; }
};

class EmbeddingTable;
struct DraftWeights;

// A tensor as the graphs declare it (graph.cpp).
struct DraftTensor {
    std::vector<int64_t> ne;
    bool is_required = false;
    bool is_f32 = false;                             // else any type that ggml multiplies with
    bool is_on_device = false;                       // graphs read it
    EmbeddingTable DraftWeights::* table = nullptr;  // the host reads it, row by row
};
using DraftTensors = std::map<std::string, DraftTensor>;

class DraftFile {
  public:
    // Error(not_found | gguf | unsupported)
    explicit DraftFile(const std::string & path);

    const GgufReader & gguf() const { return gguf_; }
    const std::string & path() const { return gguf_.path(); }
    const DraftSpec & spec() const { return spec_; }
    const DraftTensors & tensors() const { return tensors_; }

    // [n_draft_vocab] draft id -> target id; identity when the file has no table
    const std::vector<Token> & d2t() const { return d2t_; }

    // token texts of the target the drafter was made for; empty when the file carries no tokenizer
    const std::vector<std::string> & tokens() const { return tokens_; }

    // [n_vocab] llama.cpp token types, 1 = normal; may be empty
    const std::vector<int32_t> & token_types() const { return token_types_; }

  private:
    std::string key(const char * pattern) const;
    [[noreturn]] void refuse(const char * pattern, const std::string & what, ErrorKind kind = ErrorKind::gguf) const;
    int size(const char * pattern, int64_t max, std::optional<int> otherwise = {}) const;
    Token token(const char * pattern) const;
    float positive(const char * pattern, std::optional<float> otherwise = {}) const;
    bool flag(const char * pattern, bool otherwise = false) const;
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

// a key pattern with its "{arch}" or "{i}" filled in
std::string fill(std::string pattern, const std::string & value);
inline std::string fill(const char * pattern, int i) {
    return fill(pattern, std::to_string(i));
}

}  // namespace eaglecpp
