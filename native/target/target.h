// SPDX-License-Identifier: MIT
// The target model: the only user of libllama's model and context. Loads, tokenises, decodes batches of rows, hands
// out logits and features, and keeps or rolls back what sequences hold.
//
// Loading happens in two steps because the drafter's file decides which layers to tap and taps must be known when the
// context is made: construct, check the fit, open_context().
#pragma once

#include <llama.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/features.h"
#include "base/types.h"
#include "target/llama_bridge.h"
#include "target/sampler.h"
#include "target/taps.h"
#include "target/tree_batch.h"

namespace eaglecpp {

struct TargetOptions {
    std::string path;
    int n_ctx = 0;  // tokens per conversation; 0 = min(n_ctx_train, 4096), -1 = n_ctx_train
    int n_batch = 512;
    int n_ubatch = 512;
    int n_threads = 0;        // 0 = physical cores
    int n_threads_batch = 0;  // 0 = n_threads
    int n_gpu_layers = -1;    // -1 = all
    int main_gpu = 0;
    std::string split_mode = "layer";          // several GPUs: layer, row or none
    std::vector<float> tensor_split;           // share of each GPU; empty = by free memory
    int n_cpu_moe = 0;                         // layers whose experts stay in host memory; -1 = all
    std::vector<std::string> override_tensor;  // PATTERN=BUFFER[,...], as llama.cpp's --override-tensor
    std::string flash_attn = "auto";
    std::string type_k = "auto";  // f16; f32 where only plain attention on the CPU is exact
    std::string type_v = "auto";
    bool use_mmap = true;
    bool use_mlock = false;
    bool offload_kqv = true;
    float rope_freq_base = 0.0f;
    float rope_freq_scale = 0.0f;
    std::string taps = "auto";
    std::string repack = "auto";
    std::string kernels = "auto";  // our CPU kernels: auto or off
    int n_sequences = 1;           // conversations
    bool separate_caches = false;  // one for each conversation; then without trees
    int n_draft_max = 64;          // draft nodes of one round and conversation
    int n_draft_more = 0;          // beyond that, for one conversation without a recurrent state
    int n_leaves_max = 1;          // tree leaves of one round and conversation
    std::vector<std::pair<std::string, float>> lora;
};

class Target {
  public:
    // loads the model; Error(not_found | gguf | unsupported | out_of_memory)
    explicit Target(TargetOptions options);

    // makes the context, reading the residual stream entering the given blocks (boundary ids; may be empty)
    void open_context(const std::vector<int32_t> & layers);

    const TargetOptions & options() const { return options_; }
    const llama_model * model() const { return model_.get(); }
    const llama_vocab * vocab() const { return llama_model_get_vocab(model_.get()); }
    int n_ctx() const { return options_.n_ctx; }
    int n_batch() const { return options_.n_batch; }
    // rows of a prompt per step, and per batch within it: as asked for, whatever a drafter needs
    int n_slice() const { return n_slice_; }
    int n_prompt_rows() const { return n_prompt_rows_; }
    // rows of prompts in a batch with conversations that generate, which wait for them; 0 = prompts have their own
    int n_shared_rows() const;
    int n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    int n_embd() const { return llama_model_n_embd(model_.get()); }
    int n_layer() const { return llama_model_n_layer(model_.get()); }
    const char * taps_mode() const { return taps_->mode_name(); }
    bool uses_repack() const { return use_repack_; }
    // our own CPU kernels compute this target's products
    bool uses_kernels() const { return use_kernels_; }
    std::string meta(const char * key) const;
    std::vector<std::pair<std::string, std::string>> metadata() const;

    // Weights shared with the drafter, or null. `embedding`: its rows can be read on the host; `head`: the one of the
    // product, perhaps in a layout of its own; `head_to_copy`: the same values where they can be copied from.
    const ggml_tensor * embedding() const;
    const ggml_tensor * head() const;
    const ggml_tensor * head_to_copy() const;

    // where the output layer is; null for the CPU
    ggml_backend_dev_t output_device() const;

    // what it holds, by kind of memory; empty where libllama does not tell
    std::vector<MemoryUse> memory() const { return memory_use(ctx_.get()); }

    // nothing runs on a GPU
    bool is_cpu() const;
    // ggml's own products with F32, F16 and BF16 weights on the CPU: known to add in another order for several rows
    // than for one, though few texts show it
    bool has_parting_products() const { return has_float_matrices_ && is_cpu() && !use_kernels_; }

    // Recurrent and hybrid targets keep a state that cannot be cut at any row; they take chains only.
    bool has_state() const;
    // Why this target takes chains only; "" = it takes trees. Trees need plain attention over one unified cache.
    const char * chains_only() const;
    bool supports_trees() const { return !*chains_only(); }
    // rejected rows can be removed again
    bool can_roll_back() const;

    // Why no batch of several rows can be trusted to hold the bits of single rows, whatever was measured; "" = it can.
    const char * never_exact() const;
    // A row's cells keep their order when a tree's rejected nodes go (true for chains in any case).
    bool keeps_order() const { return adds_in_order_; }
    // Our kernels make every row: how rows are cut into batches is not what their bits depend on, as far as is
    // measured.
    bool rounds_alike() const { return use_kernels_ && has_own_attention_; }
    // Conversations can share a batch of any kind of rows, and the cells of what they begin with.
    bool shares_batches() const { return supports_trees() && !options_.separate_caches; }
    // There are cells left for what trees leave behind. Without, a tree makes the order of cells another one; chains
    // leave nothing behind.
    bool has_room_for_trees() const;
    // Times that the order of cells became another one.
    int n_order_lost() const { return n_order_lost_; }

    // Before a batch of n_rows prompt rows: closes the gaps that rejected nodes left where attention works in tiles,
    // whose borders they would shift. False where that cannot be done.
    bool prepare_prompt(const SeqRange & range, int n_rows);

    // threads of all decodes from now on
    void set_n_threads(int n_threads);

    std::vector<Token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string detokenize(const Tokens & tokens, bool remove_special, bool special) const;
    std::string piece(Token token, bool special) const;
    bool is_eog(Token token) const { return llama_vocab_is_eog(vocab(), token); }

    // sequence ids of conversation i
    SeqRange seqs(int conversation) const;

    // Runs the batch, at most n_batch rows. Long batches of a prompt need not round as single rows do.
    // Error(context_full | out_of_memory | broken); after an error the caller rolls its conversations back.
    void decode(TargetBatch & batch, bool is_prompt = false);

    // of row i of the last decode (rows with output only); valid until the next decode
    const float * logits(int row) const;

    // On a device: from now on the likeliest token of each row of this conversation (n_top 1) or its n_top likeliest
    // are found there, and its logits do not come back, or with 0 they do again. False where that cannot be done; then
    // they do.
    bool pick_on_device(const SeqRange & range, int n_top);
    // what was so found for row i of the last decode
    Token picked(int row) const;
    TopLogits picked_top(int row) const;
    // of all rows of the last decode; valid until the next decode
    FeatureRows features();
    // prefill rows must ask for output (a tap at the very last layer reads output rows only)
    bool needs_all_outputs() const { return taps_->needs_all_outputs(); }

    // Keeps positions [0, n) of a conversation; false when this target cannot remove the rest (it was then cleared).
    bool truncate(const SeqRange & range, Pos n);

    // Shares the first n rows of another conversation with this one, which is empty.
    void copy_prefix(const SeqRange & source, const SeqRange & range, Pos n);

    // Makes the path to `node` the common history of the conversation after a tree was verified at `pos`.
    void keep_path(const SeqRange & range, const DraftTree & tree, int node, Pos pos);

    void clear();

  private:
    bool can_pick(int n_top);
    llama_model_params model_params() const;
    void set_places();
    void check_servers() const;
    void load_model();
    LlamaModelPtr load_without_memory(llama_model_params p) const;
    bool opens_without_memory(llama_context_params p) const;
    void load_lora();
    llama_context_params context_params() const;
    void check_memory(const llama_context_params & p) const;
    void choose_attention();
    // sequence ids of one conversation
    int n_ids() const { return options_.n_leaves_max + (holds_rejected() ? 1 : 0); }
    bool holds_rejected() const;
    void hold_rejected(const SeqRange & range, const DraftTree & tree, const std::vector<int32_t> & accepted, Pos pos);
    void hold_from(const SeqRange & range, Pos n);
    bool are_others_empty(const SeqRange & range) const;
    int n_held() const;
    void close_wide_gaps();
    void free_held();
    bool close_gaps();
    int n_unused_cells() const;
    int n_unused_least() const;
    int n_free_cells() const;

    TargetOptions options_;
    std::vector<ggml_backend_dev_t> devices_;  // to use, where ggml knows of some that are gone; null at the end
    std::vector<float> split_;                 // of llama.cpp's length, or empty
    std::vector<TensorPlace> places_;
    std::vector<llama_model_tensor_buft_override> overrides_;  // of places_, null at the end
    std::set<std::string> lost_before_;                        // relays of RPC servers that this model does not use
    bool use_repack_ = true;
    bool use_kernels_ = false;
    bool has_float_matrices_ = false;
    LlamaModelPtr model_;
    std::unique_ptr<Taps> taps_;
    bool is_fused_ = false;         // attention
    bool adds_in_order_ = false;    // attention, over the cells that a row sees
    bool needs_reference_ = false;  // attention by ggml, in its reference form for few rows
    bool has_own_attention_ = false;
    int n_slice_ = 0, n_prompt_rows_ = 0;
    int n_order_lost_ = 0;
    std::vector<int> n_held_;  // cells per conversation that it gave up but that stay occupied, at most
    int n_held_most_ = 0;      // beyond so many the gaps are closed
    bool is_shared_ = false;   // the last batch had rows of several conversations
    struct Picker {
        LlamaSamplerPtr sampler;
        int n_top;
    };
    std::map<llama_seq_id, Picker> pickers_;
    std::map<int, bool> can_pick_;  // n_top -> so far as is known
    LlamaContextPtr ctx_;           // after taps_ and pickers_: the context holds pointers to them
    std::vector<std::pair<llama_adapter_lora *, float>> lora_;
};

// physical cores of this machine
int n_physical_cores();

// ggml type by name; Error(value)
ggml_type type_by_name(const std::string & name);

}  // namespace eaglecpp
