// SPDX-License-Identifier: MIT
// The target: decodes batches of rows and returns logits and hidden states. Separate classes hold its weights, context,
// tokens, cells and device picks.
//
// Loading takes two steps, because the drafter's file decides which layers to extract, and these must be known when the
// context is created: construct, check the fit, open_context().
#pragma once

#include <llama.h>

#include <memory>
#include <vector>

#include "base/hidden_states.h"
#include "base/types.h"
#include "target/cells.h"
#include "target/context.h"
#include "target/device_picks.h"
#include "target/extracted_layers.h"
#include "target/model.h"
#include "target/options.h"
#include "target/tree_batch.h"
#include "target/vocabulary.h"

namespace eaglecpp {

class Target {
  public:
    // Error(not_found | gguf | unsupported | out_of_memory)
    explicit Target(TargetOptions options);

    // Creates the context. Extracts the hidden states entering the given blocks (may be empty), or the states for the
    // model's heads.
    void open_context(const std::vector<int32_t> & layers, bool reads_states = false);

    const TargetOptions & options() const { return options_; }
    const TargetModel & model() const { return *model_; }
    std::shared_ptr<const TargetModel> weights() const { return model_; }
    // Context whose keys and values an assistant reads.
    llama_context * context() const { return context_.get(); }
    // Returns true for an embedding model, which reads a text in one batch. It has no context and decodes nothing.
    bool only_embeds() const { return only_embeds_; }
    // Error(unsupported)
    void check_generates() const {
        if (only_embeds_) refuse_generating(*model_);
    }
    const Vocabulary & vocab() const { return vocab_; }
    Cells & cells() { return cells_; }
    const Cells & cells() const { return cells_; }
    DevicePicks & picks() { return picks_; }

    int n_ctx() const { return options_.n_ctx; }
    int n_batch() const { return options_.n_batch; }
    // Prompt rows per step, and per batch within it: as configured, whatever a drafter needs.
    int n_slice() const { return n_slice_; }
    int n_prompt_rows() const { return n_prompt_rows_; }
    // Prompt rows in a batch with generating conversations, which wait for them; 0 = prompts get separate batches.
    int n_shared_rows() const;
    const char * extraction_mode() const { return extracted_layers_->mode_name(); }

    // Memory in use, by kind; empty if libllama does not report it.
    std::vector<MemoryUse> memory() const { return context_.memory(); }

    // Returns true if llama.cpp cannot remove rows from this target's (recurrent) state. After a rejection the state is
    // restored from a copy made before the drafts, and the accepted rows must be run again.
    bool copies_states() const { return copies_states_; }
    // Returns true if cells keep their order when a tree's rejected nodes are removed (with chains they always do).
    bool keeps_order() const { return adds_in_order_; }
    // Returns true if our kernels compute every row. According to all measurements, its bits then do not depend on how
    // rows are cut into batches.
    bool rounds_alike() const { return model_->uses_kernels() && has_own_attention_; }
    // Returns true if conversations can share batches of any kind of rows, and the cells of a common prefix.
    bool shares_batches() const { return model_->supports_trees() && !options_.separate_caches; }

    // Returns true if the cells of a conversation can be saved and restored. Sparse attention that counts in cells
    // would find other blocks afterwards.
    bool can_save_rows() const { return model_->supports_trees() || model_->has_state(); }

    // Call before a batch of n_rows prompt rows. If attention works in tiles, closes the gaps that rejected nodes left,
    // because they would shift the borders of the tiles. Returns false if that is impossible.
    bool prepare_prompt(const SeqRange & range, int n_rows);

    // Sets the number of threads of later decodes.
    void set_n_threads(int n_threads) { context_.set_n_threads(n_threads); }

    // Runs the batch, up to n_batch rows; see Context::decode. After an error the caller rolls its conversations back.
    void decode(TargetBatch & batch, bool is_prompt = false);

    // Logits of row i of the last decode, which must have an output; valid until the next decode. Error(broken) if that
    // decode failed.
    const float * logits(int row) const { return context_.logits(row); }
    // Hidden states of all rows of the last decode; valid until the next decode. Error(broken) if that decode failed.
    HiddenStates hidden_states();

    // Returns true if prompt rows need outputs, because the very last layer's hidden states exist only for output rows.
    bool needs_all_outputs() const { return extracted_layers_->needs_all_outputs(); }
    // Returns true if the last block also computes rows without output, which can change their rounding.
    bool widens_last_block() const { return extracted_layers_->widens_last_block(); }

  private:
    llama_context_params context_params() const;
    void choose_attention();
    void set_cells();
    void make_context();

    TargetOptions options_;
    std::shared_ptr<const TargetModel> model_;
    Vocabulary vocab_;
    std::unique_ptr<ExtractedLayers> extracted_layers_;
    bool is_fused_ = false;         // fused attention
    bool adds_in_order_ = false;    // attention adds in the order of the cells
    bool needs_reference_ = false;  // ggml's attention in its reference version for few rows
    bool has_own_attention_ = false;
    bool copies_states_ = false;
    bool only_embeds_ = false;
    int n_slice_ = 0, n_prompt_rows_ = 0;
    Cells cells_;
    DevicePicks picks_;
    Context context_;  // after extracted_layers_ and picks_, to which it holds pointers
};

// Number of physical cores that this process may use.
int n_physical_cores();

}  // namespace eaglecpp
