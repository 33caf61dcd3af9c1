// SPDX-License-Identifier: MIT
// Which cells of the target's cache belong to which conversation, and which stay occupied although they are no longer
// needed, so that rows keep the order in which attention adds them.
#pragma once

#include <llama.h>

#include <cstdint>
#include <vector>

#include "algo/tree.h"
#include "target/tree_batch.h"

namespace eaglecpp {

struct CellRules {
    int n_conversations = 1;
    int n_ctx = 0;               // tokens of each
    int n_draft_max = 0;         // nodes of a round of each
    int n_leaves_max = 1;        // of a round of each
    bool is_shared = false;      // conversations share batches and the cache
    bool adds_in_order = false;  // attention, over the cells that a row sees
    bool copies_states = false;  // recurrent ones, of which llama.cpp keeps no past
};

class Cells {
  public:
    explicit Cells(const CellRules & rules = {}) : rules_(rules), n_held_(rules.n_conversations, 0) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // sequence ids of one conversation, and those of conversation i
    int n_ids() const { return rules_.n_leaves_max + (holds_rejected() || rules_.copies_states ? 1 : 0); }
    SeqRange seqs(int conversation) const;

    // Before a batch: makes room for it.
    void prepare(const llama_batch & rows);

    // Closes the gaps that rejected nodes left. Called before rows whose attention works in tiles, because gaps would
    // shift the tiles' borders. False if that cannot be done, for example because other conversations have cells.
    bool close_gaps_before(const SeqRange & range);

    // Keeps positions [0, n) of a conversation; false when this target cannot remove the rest (it was then cleared).
    bool truncate(const SeqRange & range, Pos n);

    // Shares the first n rows of another conversation with this one, which is empty.
    void copy_prefix(const SeqRange & source, const SeqRange & range, Pos n);

    // save_rows() returns the rows of a conversation as bytes; load_rows() replaces a conversation's rows by those
    // saved from any conversation of this target. False if there is no room; the conversation is then empty.
    std::vector<uint8_t> save_rows(const SeqRange & range) const;
    bool load_rows(const SeqRange & range, const std::vector<uint8_t> & bytes, int n_rows);

    // Call before drafts of this conversation are run: where states are copied, keeps a copy that keep_path() can go
    // back to. The copy shares the state's memory until rows are run.
    void remember(const SeqRange & range);

    // Makes the path to `node` the common history of the conversation after a tree was verified at `pos`. False if it
    // had to go back to the state that remember() copied: all rows run since then are gone.
    bool keep_path(const SeqRange & range, const DraftTree & tree, int node, Pos pos);

    // number of rows that the cache holds of a conversation
    Pos n_rows(const SeqRange & range) const;

    void clear();

    // Whether there are cells left for the rejected nodes that trees leave behind. Without them a tree changes the
    // order of cells; chains leave nothing behind.
    bool has_room_for_trees() const;
    // how many times the order of cells has changed
    int n_order_lost() const { return n_order_lost_; }

  private:
    bool holds_rejected() const;
    void hold_rejected(const SeqRange & range, const DraftTree & tree, const std::vector<int32_t> & accepted, Pos pos);
    void hold_from(const SeqRange & range, Pos n);
    void go_back(const SeqRange & range);
    bool are_others_empty(const SeqRange & range) const;
    int n_held() const;
    void free_held();
    bool close_gaps();
    int n_unused() const;
    int n_unused_min() const;

    CellRules rules_;
    llama_context * ctx_ = nullptr;
    std::vector<int> n_held_;  // cells per conversation that it gave up but that stay occupied, at most
    int n_order_lost_ = 0;
    bool is_shared_ = false;  // the last batch had rows of several conversations
};

}  // namespace eaglecpp
