// SPDX-License-Identifier: MIT
// A drafter that llama.cpp runs: a small model of the target's family, opened as a target of its own, or the target's
// own head for further tokens (MTP), a context on its weights. Row p of a conversation is the token at p + 1 of the
// text at position p + 1; a head reads the target's state at p beside it, a small model's first commit also runs the
// text's first token.
//
// Draft rows of a tree lie in the same cache: each branch has a sequence id, whose cells are the committed rows and the
// ancestors of its last row. A branch that parts from another takes over its cells; a level can have as many rows as a
// conversation has ids. What the target accepted a small model does not run again: its draft rows become committed
// ones. Those of a head read its own states in place of the target's, and are run again with those.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "draft/drafter.h"
#include "engine/options.h"
#include "engine/token_map.h"
#include "target/target.h"

namespace eaglecpp {

// whether the drafter that the options name is the target's own head
bool drafts_with_head(const EngineOptions & options);

class ModelDrafter : public Drafter {
  public:
    // Opened where EngineOptions::draft_device says. Error(not_found | gguf | mismatch | unsupported | out_of_memory |
    // cancelled | value)
    // With the target's own file for a drafter its head drafts.
    ModelDrafter(const EngineOptions & options, const Target & target);

    DraftTraits traits() const override;
    const std::vector<Token> & d2t() const override { return map_.to_target; }
    std::unique_ptr<DraftSequence> open(int conversation) override;
    void commit_together(const std::vector<DraftCommit> & commits) override;
    void extend_together(const std::vector<DraftLevel> & levels) override;
    void set_n_threads(int n_threads) override { model_->set_n_threads(n_threads); }
    std::string device_name() const override;
    std::vector<DraftMemoryUse> memory_use() const override;

    const Target & model() const { return *model_; }

  private:
    friend class ModelSequence;

    // Output row `row` of the last batch: logits, those that are no token of the target's made impossible.
    TokenLogits logits(int row);

    bool is_head() const { return model_->options().runs_heads; }

    std::unique_ptr<Target> model_;
    TokenMap map_;
    TargetBatch batch_;
    std::vector<float> masked_;  // kept to save allocations
};

}  // namespace eaglecpp
