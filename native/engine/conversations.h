// SPDX-License-Identifier: MIT
// The open conversations, and the rows that target and drafter hold for each conversation. Rolls conversations back to
// a common prefix, copies rows between them, saves them and drops them. Never runs the target.
#pragma once

#include <functional>
#include <map>

#include "engine/models.h"
#include "engine/saved_sequence.h"
#include "engine/sequence.h"

namespace eaglecpp {

class Conversations {
  public:
    explicit Conversations(Models & models);

    // Opens an unused conversation. Error(value) if all conversations are open.
    Sequence & open();
    void close(int id) { open_.erase(id); }
    // Returns an open conversation. Error(value) if `id` is not open.
    Sequence & get(int id);
    const Sequence & get(int id) const { return const_cast<Conversations *>(this)->get(id); }
    bool does_any_generate() const;

    // Rolls target and drafter back to the longest common prefix of text and prompt. The last prompt token always runs
    // again, because its logits give the first token of the answer. With and without a drafter, the target keeps and
    // runs the same rows.
    void reuse(Sequence & s, const Tokens & prompt);

    // Shortens the text to its first n tokens. The last of these tokens counts as not run.
    void cut(Sequence & s, int n);

    // Returns the position of a prompt's last checkpoint; 0 = no checkpoint is needed. The same prompt and the prompt
    // that follows can start from this position.
    int last_checkpoint(const Sequence & s) const;
    // Call this function after a batch with rows of the prompt. Sets the prompt's last checkpoint, and earlier
    // checkpoints at growing distances.
    void set_checkpoint(Sequence & s);

    // Copies the rows of another conversation whose text starts like this prompt, if it shares more tokens with the
    // prompt than `s` already has. Call this function before any row of the prompt runs.
    void adopt(Sequence & s);

    // Drops all rows and states that target and drafter hold for this conversation.
    void forget(Sequence & s);

    // Call this function after an error. Ends the generation and restores the state before the failed step, when the
    // text had n_tokens tokens.
    void roll_back(Sequence & s, size_t n_tokens);

    // Returns a copy of a conversation that is not generating.
    SavedSequence save(const Sequence & s) const;
    // Replaces a conversation by a saved conversation. Returns false if the cache has no room; the conversation is then
    // empty.
    bool restore(Sequence & s, const SavedSequence & saved);

    // Calls use() with the sequence ids of a conversation without rows, and use() removes its own rows. If all
    // conversations have rows, swaps the shortest out during the call. Does nothing if it cannot be swapped out, or is
    // long.
    void lend(const std::function<void(const SeqRange &)> & use);

    // Call this function after a batch. If llama.cpp's cells are no longer in order, marks all conversations as
    // inexact, because new rows may fill gaps anywhere.
    void note_order();

  private:
    void keep(Sequence & s, int n);
    void adopt_draft(Sequence & s, const Sequence & source, int n);

    Target & target_;
    Drafter * drafter_;
    const DraftTraits & traits_;
    std::map<int, Sequence> open_;
    int n_order_lost_ = 0;
};

}  // namespace eaglecpp
