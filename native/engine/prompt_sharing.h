// SPDX-License-Identifier: MIT
// How prompts are cut into slices while several conversations run: which may share a batch with rounds, and which wait
// for rows that another conversation is about to run. Where exactness is asked for, this must not change any bits.
#pragma once

#include <vector>

#include "algo/costs.h"
#include "engine/sequence.h"
#include "target/target.h"

namespace eaglecpp {

// One conversation's part of a batch, from its n_past on: tokens of its prompt, or a tree.
struct BatchPart {
    Sequence * seq;
    int n_rows;     // of the prompt
    int first = 0;  // in the batch, once it is there
    DraftTree tree = {};

    bool is_last() const { return seq->n_past + n_rows == seq->n_prompt; }
};

class PromptSharing {
  public:
    // `exact_rows` and `target` outlive this
    PromptSharing(const Target & target, const RowCounts & exact_rows, bool can_draft)
        : target_(target), exact_rows_(exact_rows), can_draft_(can_draft) {}

    // whether these prompts may share the batch of these rounds
    bool can_share(const std::vector<Sequence *> & reading, const std::vector<Sequence *> & decoding) const;

    // The prompt rows to add to a batch that already has n_rows rows of rounds, beginning with the first prompt.
    std::vector<BatchPart> cut(const std::vector<Sequence *> & reading, int n_rows) const;

    // whether this conversation may take over rows of another one
    bool can_adopt(const Sequence & s) const;

    // whether one of `reading` is about to run rows that `s` could take over
    bool waits_for(const Sequence & s, const std::vector<Sequence *> & reading) const;

  private:
    bool cuts_freely(const Sequence & s, int n_rows) const;

    const Target & target_;
    const RowCounts & exact_rows_;
    bool can_draft_;
};

}  // namespace eaglecpp
