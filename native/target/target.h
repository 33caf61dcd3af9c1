// SPDX-License-Identifier: MIT
// The target: decodes batches of rows and returns logits and hidden states. Separate classes hold its weights, context,
// tokens, cells and device picks.
//
// Loading takes two calls: the constructor and open_context(). The caller checks between the two calls that drafter and
// target match. The reason: the drafter's file decides which layers to extract, and the context needs these layers when
// it is created.
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
    // Loads the model. Error(not_found | gguf | unsupported | out_of_memory)
    explicit Target(TargetOptions options);

    // Creates the context. Its decodes extract the hidden states at the inputs of the given blocks. `layers` may be
    // empty. reads_states: decodes extract the states for the model's heads instead.
    void open_context(const std::vector<int32_t> & layers, bool reads_states = false);

    const TargetOptions & options() const { return options_; }
    const TargetModel & model() const { return *model_; }
    std::shared_ptr<const TargetModel> weights() const { return model_; }
    // Returns the target's context. An assistant head reads the target's keys and values from this context.
    llama_context * context() const { return context_.get(); }
    // Returns true for an embedding model that reads a text in one batch. Its target has no context and cannot decode.
    bool only_embeds() const { return only_embeds_; }
    // Raises Error(unsupported) for an embedding model.
    void check_generates() const {
        if (only_embeds_) refuse_generating(*model_);
    }
    const Vocabulary & vocab() const { return vocab_; }
    Cells & cells() { return cells_; }
    const Cells & cells() const { return cells_; }
    DevicePicks & picks() { return picks_; }

    int n_ctx() const { return options_.n_ctx; }
    int n_batch() const { return options_.n_batch; }
    // n_slice() is the number of prompt rows per step. n_prompt_rows() is the number of prompt rows per batch within a
    // step. Both numbers follow the configuration and do not depend on a drafter.
    int n_slice() const { return n_slice_; }
    int n_prompt_rows() const { return n_prompt_rows_; }
    // Number of prompt rows in a batch with generating conversations, which wait for these rows. 0 = prompts and
    // generating conversations never share a batch.
    int n_shared_rows() const;
    const char * extraction_mode() const { return extracted_layers_->mode_name(); }

    // Memory of the context and the model, by kind; empty if libllama does not report it.
    std::vector<MemoryUse> memory() const { return context_.memory(); }

    // Returns true if this target has a recurrent state from which llama.cpp cannot remove rows. After a rejection, the
    // state is restored from a copy made before the drafts, and the accepted rows must run again.
    bool copies_states() const { return copies_states_; }
    // Returns true if cells keep their order when the rejected nodes of a tree are removed. The rejected nodes of a
    // chain never change the order.
    bool keeps_order() const { return adds_in_order_; }
    // Returns true if our kernels compute every row. In all measurements, a row's bits then did not depend on how rows
    // were divided into batches.
    bool rounds_alike() const { return model_->uses_kernels() && has_own_attention_; }
    // Returns true if conversations can share batches with any mix of rows, and share the cells of a common prefix.
    bool shares_batches() const { return model_->supports_trees() && !options_.separate_caches; }

    // Returns true if the cells of a conversation can be saved and restored. This is impossible for targets whose
    // sparse attention numbers its blocks by cell, because it would find other blocks after a restore.
    bool can_save_rows() const { return model_->supports_trees() || model_->has_state(); }

    // Call this function before a batch of n_rows prompt rows. If attention works in tiles, closes the gaps that
    // rejected nodes left, because gaps would shift the borders of the tiles. Returns false if the gaps cannot be
    // closed.
    bool prepare_prompt(const SeqRange & range, int n_rows);

    // Sets the number of threads for later decodes.
    void set_n_threads(int n_threads) { context_.set_n_threads(n_threads); }

    // Runs the batch, which has up to n_batch rows; see Context::decode. After an error the caller must roll its
    // conversations back.
    void decode(TargetBatch & batch, bool is_prompt = false);

    // Returns the logits of row i of the last decode. The logits are valid until the next decode. The row must have an
    // output. Error(broken) if the decode failed.
    const float * logits(int row) const { return context_.logits(row); }
    // Returns the hidden states of all rows of the last decode. They are valid until the next decode. Error(broken) if
    // the decode failed.
    HiddenStates hidden_states();

    // Returns true if prompt rows need outputs, which is the case if the very last layer is extracted: its hidden
    // states exist only for output rows.
    bool needs_all_outputs() const { return extracted_layers_->needs_all_outputs(); }
    // Returns true if the last block computes all rows, including rows without output. This can change how rows are
    // rounded.
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
    bool is_fused_ = false;         // flash attention is in use
    bool adds_in_order_ = false;    // attention adds in the order of the cells
    bool needs_reference_ = false;  // batches with few rows use the reference version of ggml's attention
    bool has_own_attention_ = false;
    bool copies_states_ = false;
    bool only_embeds_ = false;
    int n_slice_ = 0, n_prompt_rows_ = 0;
    Cells cells_;
    DevicePicks picks_;
    Context context_;  // declared after extracted_layers_ and picks_, because the context holds pointers to both
};

// Returns the number of physical cores that this process may use.
int n_physical_cores();

}  // namespace eaglecpp
