// SPDX-License-Identifier: MIT
// The target: decodes batches of rows and hands out logits and features. Its weights, context, tokens, cells and picks
// on a device are classes of their own.
//
// Loading happens in two steps because the drafter's file decides which layers to tap and taps must be known when the
// context is made: construct, check the fit, open_context().
#pragma once

#include <llama.h>

#include <memory>
#include <vector>

#include "base/features.h"
#include "base/types.h"
#include "target/cells.h"
#include "target/context.h"
#include "target/device_picks.h"
#include "target/model.h"
#include "target/options.h"
#include "target/taps.h"
#include "target/tree_batch.h"
#include "target/vocabulary.h"

namespace eaglecpp {

class Target {
  public:
    // Error(not_found | gguf | unsupported | out_of_memory)
    explicit Target(TargetOptions options);

    // makes the context, reading the residual stream entering the given blocks (boundary ids; may be empty), or the
    // states for heads of the model
    void open_context(const std::vector<int32_t> & layers, bool reads_states = false);

    const TargetOptions & options() const { return options_; }
    const TargetModel & model() const { return *model_; }
    std::shared_ptr<const TargetModel> weights() const { return model_; }
    // what an assistant reads keys and values of
    llama_context * context() const { return context_.get(); }
    // Whether this is a model for embeddings, which reads a text at once. It has no context then and decodes nothing.
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
    // rows of a prompt per step, and per batch within it: as asked for, whatever a drafter needs
    int n_slice() const { return n_slice_; }
    int n_prompt_rows() const { return n_prompt_rows_; }
    // rows of prompts in a batch with conversations that generate, which wait for them; 0 = prompts have their own
    int n_shared_rows() const;
    const char * taps_mode() const { return taps_->mode_name(); }

    // memory in use, by kind; empty where libllama does not tell
    std::vector<MemoryUse> memory() const { return context_.memory(); }

    // True if llama.cpp cannot remove rows from this target's (recurrent) state: after a rejection the state is
    // restored from a copy made before the drafts, and the accepted rows have to be run again.
    bool copies_states() const { return copies_states_; }
    // Whether a row's cells keep their order when a tree's rejected nodes are removed (with chains they always do).
    bool keeps_order() const { return adds_in_order_; }
    // Whether our kernels compute every row: its bits then do not depend on how rows are cut into batches, as far as
    // has been measured.
    bool rounds_alike() const { return model_->uses_kernels() && has_own_attention_; }
    // Whether conversations can share batches of any kind of rows, and the cells of a common beginning.
    bool shares_batches() const { return model_->supports_trees() && !options_.separate_caches; }

    // Whether what a conversation's cells hold can be taken out and put back. That needs rows to stay as they were
    // computed, which does not apply to sliding windows and recurrent states.
    bool can_save_rows() const { return shares_batches() && llama_model_n_swa(model_->get()) == 0; }

    // Call before a batch of n_rows prompt rows: where attention works in tiles, closes the gaps that rejected nodes
    // left, because they would shift the tiles' borders. False if that cannot be done.
    bool prepare_prompt(const SeqRange & range, int n_rows);

    // number of threads for all decodes from now on
    void set_n_threads(int n_threads) { context_.set_n_threads(n_threads); }

    // Runs the batch, at most n_batch rows, as Context::decode. After an error the caller rolls its conversations back.
    void decode(TargetBatch & batch, bool is_prompt = false);

    // Logits of row i of the last decode (rows with output only); valid until the next decode. Error(broken) if that
    // failed.
    const float * logits(int row) const { return context_.logits(row); }
    // Features of all rows of the last decode; valid until the next decode. Error(broken) if that failed.
    FeatureRows features();

    // prefill rows must ask for output (a tap at the very last layer reads output rows only)
    bool needs_all_outputs() const { return taps_->needs_all_outputs(); }
    // how the last block's rows without output round is that of a batch with them
    bool widens_last_block() const { return taps_->widens_last_block(); }

  private:
    llama_context_params context_params() const;
    void choose_attention();
    void set_cells();
    void make_context();

    TargetOptions options_;
    std::shared_ptr<const TargetModel> model_;
    Vocabulary vocab_;
    std::unique_ptr<Taps> taps_;
    bool is_fused_ = false;         // attention
    bool adds_in_order_ = false;    // attention, over the cells that a row sees
    bool needs_reference_ = false;  // attention by ggml, in its reference form for few rows
    bool has_own_attention_ = false;
    bool copies_states_ = false;
    bool only_embeds_ = false;
    int n_slice_ = 0, n_prompt_rows_ = 0;
    Cells cells_;
    DevicePicks picks_;
    Context context_;  // after taps_ and picks_: it holds pointers to them
};

// physical cores that this process may use
int n_physical_cores();

}  // namespace eaglecpp
