// SPDX-License-Identifier: MIT
// Which cells of the target's cache belong to which conversation, and which stay occupied although they are no longer
// needed, so that rows keep the order in which attention adds them.
//
// Callers count the rows of a conversation's text. These are llama.cpp's positions, too, except where a target numbers
// the rows of an image in three directions (M-RoPE): there all rows of an image have one position, and the text behind
// them goes on after as many as the image's longer side has rows or columns.
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
    bool has_state = false;      // a recurrent one
    bool copies_states = false;  // of which llama.cpp keeps no past
};

// The rows of an image that share a position, by their places in the text.
struct ImageRows {
    int first, n_rows, n_pos;
};

class Cells {
  public:
    explicit Cells(const CellRules & rules = {})
        : rules_(rules),
          n_held_(rules.n_conversations, 0),
          n_common_(rules.n_conversations, std::vector<int>(rules.n_conversations, 0)),
          images_(rules.n_conversations),
          n_run_(rules.n_conversations, 0) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // sequence ids of one conversation, and those of conversation i
    int n_ids() const { return rules_.n_leaves_max + (holds_rejected() || rules_.copies_states ? 1 : 0); }
    SeqRange seqs(int conversation) const;

    // Images of a conversation's text, which have to be those of its rows that are there.
    void set_images(const SeqRange & range, std::vector<ImageRows> v) { images_[of(range.first)] = std::move(v); }
    const std::vector<ImageRows> & images(const SeqRange & range) const { return images_[of(range.first)]; }
    // llama.cpp's position of row n of a conversation
    Pos pos(const SeqRange & range, int n) const;

    // Before a batch: makes room for it.
    void prepare(const llama_batch & rows);

    // Closes the gaps that rejected nodes left. Called before rows whose attention works in tiles, because gaps would
    // shift the tiles' borders. False if that cannot be done, for example because other conversations have cells.
    bool close_gaps_before(const SeqRange & range);

    // Keeps rows [0, n) of a conversation, whole images; false when this target cannot remove the rest (it was then
    // cleared).
    bool truncate(const SeqRange & range, int n);

    // Shares the first n rows of another conversation with this one, which is empty.
    void copy_prefix(const SeqRange & source, const SeqRange & range, int n);

    // save_rows() appends the rows of a conversation to `out` and returns their number of bytes; load_rows() replaces a
    // conversation's rows by those saved from any conversation of this target. False if there is no room; the
    // conversation is then empty.
    size_t save_rows(const SeqRange & range, std::vector<uint8_t> & out) const;
    bool load_rows(const SeqRange & range, ByteView bytes, int n_rows);

    // Call before drafts of this conversation are run: where states are copied, keeps a copy that keep_path() can go
    // back to. The copy shares the state's memory until rows are run.
    void remember(const SeqRange & range);

    // Makes the path to `node` the common history of the conversation after a tree was verified behind `n_past` rows.
    // False if it had to go back to the state that remember() copied: all rows run since then are gone.
    bool keep_path(const SeqRange & range, const DraftTree & tree, int node, int n_past);

    // number of rows that the cache holds of a conversation; an image at the end counts as read to its end
    int n_rows(const SeqRange & range) const { return n_rows(range.first); }

    void clear();

    // Whether there are cells left for the rejected nodes that trees leave behind. Without them a tree changes the
    // order of cells; chains leave nothing behind.
    bool has_room_for_trees() const;
    // how many times the order of cells has changed
    int n_order_lost() const { return n_order_lost_; }

  private:
    int of(llama_seq_id id) const { return id / n_ids(); }
    int n_rows(llama_seq_id id) const;
    bool holds_rejected() const;
    void hold_rejected(const SeqRange & range, const DraftTree & tree, const std::vector<int32_t> & accepted, Pos pos);
    void hold_from(const SeqRange & range, int n);
    void go_back(const SeqRange & range);
    bool are_others_empty(const SeqRange & range) const;
    int n_held() const;
    void free_held();
    bool close_gaps();
    void move_down(int conversation);
    int n_unused() const;
    int n_unused_min() const;

    CellRules rules_;
    llama_context * ctx_ = nullptr;
    std::vector<int> n_held_;  // cells per conversation that it gave up but that stay occupied, at most
    // By two conversations: rows of a common prefix, which they hold once. A conversation has none with itself.
    std::vector<std::vector<int>> n_common_;
    std::vector<std::vector<ImageRows>> images_;  // by conversation
    std::vector<int> n_run_;                      // rows per conversation of the last batch
    int n_order_lost_ = 0;
    bool is_shared_ = false;  // the last batch had rows of several conversations
};

}  // namespace eaglecpp
