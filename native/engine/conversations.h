// SPDX-License-Identifier: MIT
// The open conversations and what target and drafter hold of each. Rolls them back to a common prefix, copies rows
// between them, saves and drops them. Never runs the target.
#pragma once

#include <map>

#include "engine/models.h"
#include "engine/saved_sequence.h"
#include "engine/sequence.h"

namespace eaglecpp {

class Conversations {
  public:
    explicit Conversations(Models & models);

    // Opens a free conversation. Error(value) if all are open.
    Sequence & open();
    void close(int id) { open_.erase(id); }
    // Error(value) if it is not open.
    Sequence & get(int id);
    const Sequence & get(int id) const { return const_cast<Conversations *>(this)->get(id); }
    bool empty() const { return open_.empty(); }
    // Returns true if a conversation other than `id` is generating.
    bool does_any_generate(int id) const;

    // Rolls target and drafter back to the longest common prefix. The last prompt token is always run again, because
    // its logits give the first token. With a drafter the target keeps and runs the same rows as without one.
    void reuse(Sequence & s, const Tokens & prompt);

    // Shortens the text to its first n tokens. The last of them counts as not run.
    void cut(Sequence & s, int n);

    // Position of the last checkpoint of a prompt, where the same prompt and the next one can start; 0 = not needed.
    int last_checkpoint(const Sequence & s) const;
    // Call it after a batch with rows of the prompt. Sets this checkpoint, and others at growing distances.
    void set_checkpoint(Sequence & s);

    // Copies the rows of another conversation whose text starts like this prompt, if that is longer than the rows
    // already here. Call it before any row of the prompt is run.
    void adopt(Sequence & s);

    // Drops everything that target and drafter hold of this conversation.
    void forget(Sequence & s);

    // After an error: restores the state before the step, when the text had n_tokens, and ends the generation.
    void roll_back(Sequence & s, size_t n_tokens);

    // Only for a conversation that is not generating.
    SavedSequence save(const Sequence & s) const;
    // Returns false if there is no room; the conversation is then empty.
    bool restore(Sequence & s, const SavedSequence & saved);

    // Call after a batch. If llama.cpp's cells are no longer in order, new rows may fill gaps anywhere, so all
    // conversations are marked inexact.
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
