// SPDX-License-Identifier: MIT
// A drafter that llama.cpp runs in a separate context: a small model of the target's family, or a head that predicts
// additional tokens (MTP). Row p of a conversation has the text's token p + 1 at position p + 1. A head also reads the
// target's state at position p. The first commit of a small model also runs the text's first token.
//
// model_sequence.h and assistant.h implement the differences between these kinds of drafters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "draft/drafter.h"
#include "engine/draft_vocabulary.h"
#include "engine/options.h"
#include "target/cells.h"
#include "target/context.h"
#include "target/heads.h"
#include "target/target.h"

namespace eaglecpp {

class ModelDrafter : public Drafter {
  public:
    // Opens the drafter on EngineOptions::draft_device. `heads` is the kind of heads in the drafter's file. With
    // Heads::in_model the drafter's file is the target's file. `target` must outlive this object. Error(not_found |
    // gguf | mismatch | unsupported | out_of_memory | value)
    ModelDrafter(const EngineOptions & options, const Target & target, Heads heads);

    DraftTraits traits() const override;
    DraftDescription describe() const override;
    std::unique_ptr<DraftSequence> open(int conversation) override;
    void extend_together(const std::vector<DraftRequest> & steps) override;
    void set_n_threads(int n_threads) override { context_.set_n_threads(n_threads); }
    std::string device_name() const override;
    std::vector<MemoryUse> memory_use() const override;

  private:
    friend class ModelSequence;
    friend class SmallModelSequence;
    friend class HeadSequence;
    friend class Assistant;

    int n_commit_rows() const override { return n_ubatch_; }
    void run_commits(const std::vector<DraftRequest> & commits) override;

    void check_fit() const;
    void check_vocabulary() const;
    void make_context(const TargetOptions & options);
    // Runs the batch. Returns false if the target's cache has no room for an assistant's batch.
    bool decode(bool is_prompt);

    // Maps a target token to the drafter's vocabulary. The drafter's end token replaces tokens beyond the drafter's
    // unpadded vocabulary.
    Token own_token(Token token) const;

    bool is_head() const { return heads_ != Heads::none; }
    bool is_assistant() const { return heads_ == Heads::assistant; }

    Heads heads_;
    const Target & target_;
    std::shared_ptr<const TargetModel> model_;
    int n_ubatch_ = 0;
    Context context_;
    Cells cells_;
    TargetBatch batch_;
    DraftVocabulary vocabulary_;
    int n_own_ = 0, n_known_ = 0;  // size of the drafter's vocabulary; number of tokens that target and drafter share
};

}  // namespace eaglecpp
