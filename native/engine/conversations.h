// SPDX-License-Identifier: MIT
// The open conversations, and what target and drafter hold of each: rolls it back to a common beginning, takes it over
// from another conversation, saves it outside the caches, drops it. Never runs the target.
#pragma once

#include <map>

#include "engine/models.h"
#include "engine/saved_sequence.h"
#include "engine/sequence.h"

namespace eaglecpp {

class Conversations {
  public:
    explicit Conversations(Models & models);

    // a free one; Error(value) when all are open
    Sequence & open();
    void close(int id) { open_.erase(id); }
    // Error(value) when it is not open
    Sequence & get(int id);
    const Sequence & get(int id) const { return const_cast<Conversations *>(this)->get(id); }
    bool empty() const { return open_.empty(); }
    // but `id`
    bool does_any_generate(int id) const;

    // Rolls target and drafter back to the longest common prefix. The last prompt token is always run again: its
    // logits give the first token. The target keeps and runs the same rows with a drafter as without one.
    void reuse(Sequence & s, const Tokens & prompt);

    // Ends the text after its first n tokens, the last of which has not been run.
    void cut(Sequence & s, int n);

    // If the prompt begins like the text of another conversation, takes over that one's rows, before any of its own are
    // run.
    void adopt(Sequence & s);

    // Drops everything that target and drafter hold of it.
    void forget(Sequence & s);

    // After an error: restores what it held before the step, when its text had n_tokens, and ends its generation.
    void roll_back(Sequence & s, size_t n_tokens);

    // only for a conversation without a generation under way
    SavedSequence save(const Sequence & s) const;
    // false if there is no room; the conversation is then empty
    bool restore(Sequence & s, const SavedSequence & saved);

    // After a batch. Where the order of cells was given up, whatever comes next may fill gaps anywhere.
    void note_order();

  private:
    void reuse_draft(Sequence & s, int n_keep, bool is_same_next);
    void keep(Sequence & s, int n);
    void adopt_draft(Sequence & s, const Sequence & source, int n);

    Target & target_;
    Drafter * drafter_;
    const DraftTraits & traits_;
    std::map<int, Sequence> open_;
    int n_order_lost_ = 0;
};

}  // namespace eaglecpp
