// SPDX-License-Identifier: MIT
// Cuts prompts into slices while several conversations run. Decides which prompts share a batch with rounds, and which
// prompts wait for rows that another conversation is about to compute. With Exactness::on, sharing never changes a bit
// of the results.
#pragma once

#include <vector>

#include "algo/costs.h"
#include "engine/sequence.h"
#include "target/target.h"

namespace eaglecpp {

// One conversation's rows in a batch, starting at its n_past: a slice of its prompt or a tree.
struct BatchPart {
    Sequence * seq;
    int n_rows;     // prompt rows
    int first = 0;  // index of the first row in the batch, set when the part is added
    DraftTree tree = {};

    bool is_last() const { return seq->n_past + n_rows == seq->n_prompt; }
};

class PromptSharing {
  public:
    // `exact_rows` and `target` must outlive this object.
    PromptSharing(const Target & target, const RowCounts & exact_rows, bool can_draft)
        : target_(target), exact_rows_(exact_rows), can_draft_(can_draft) {}

    // Returns true if the prompts of `reading` may share the batch of the rounds of `decoding`.
    bool can_share(const std::vector<Sequence *> & reading, const std::vector<Sequence *> & decoding) const;

    // Returns the prompt slices to add to a batch that already has n_rows rows of rounds, in the order of `reading`.
    std::vector<BatchPart> cut(const std::vector<Sequence *> & reading, int n_rows) const;

    // Returns true if this conversation may copy rows of another one.
    bool can_adopt(const Sequence & s) const;

    // Returns true if a conversation in `reading` is about to compute rows that `s` could copy.
    bool waits_for(const Sequence & s, const std::vector<Sequence *> & reading) const;

  private:
    bool cuts_freely(const Sequence & s, int n_rows) const;

    const Target & target_;
    const RowCounts & exact_rows_;
    bool can_draft_;
};

}  // namespace eaglecpp
