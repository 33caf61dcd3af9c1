// SPDX-License-Identifier: MIT
// Tracks which cells of the target's cache belong to which conversation, and which cells stay reserved after their rows
// were dropped, so that rows keep the order in which attention adds them.
//
// Callers count the rows of a conversation's text. These are also llama.cpp's positions, except if a target numbers the
// rows of an image in three dimensions (M-RoPE). Then all rows of an image share one position, and the text after it
// continues after max(rows, columns) positions.
#pragma once

#include <llama.h>

#include <cstdint>
#include <vector>

#include "algo/tree.h"
#include "target/tree_batch.h"

namespace eaglecpp {

struct CellRules {
    int n_conversations = 1;
    int n_ctx = 0;               // tokens per conversation
    int n_draft_max = 0;         // draft nodes per round and conversation
    int n_leaves_max = 1;        // leaves per round and conversation
    bool is_shared = false;      // conversations share batches and the cache
    bool adds_in_order = false;  // attention adds in the order of the cells
    bool has_state = false;      // recurrent
    bool copies_states = false;  // llama.cpp keeps no past states
    int n_window = 0;            // length of sliding windows; 0 = no windows, or a recurrent state
};

// Rows of an image that share a position, as indices into the text.
struct ImageRows {
    int first, n_rows, n_pos;
};

class Cells {
  public:
    explicit Cells(const CellRules & rules = {})
        : rules_(rules),
          n_reserved_(rules.n_conversations, 0),
          n_common_(rules.n_conversations, std::vector<int>(rules.n_conversations, 0)),
          images_(rules.n_conversations),
          n_run_(rules.n_conversations, 0) {}
    void attach(llama_context * ctx) { ctx_ = ctx; }

    // Number of sequence ids per conversation, and the ids of a conversation.
    int n_ids() const { return rules_.n_leaves_max + (reserves_rejected() || rules_.copies_states ? 1 : 0); }
    SeqRange seqs(int conversation) const;
    // Number of all sequence ids, including the one that save_end() borrows.
    int n_seqs() const { return rules_.n_conversations * n_ids() + borrows(); }

    // Sets the images of a conversation's text; they must match its stored rows.
    void set_images(const SeqRange & range, std::vector<ImageRows> v) { images_[of(range.first)] = std::move(v); }
    const std::vector<ImageRows> & images(const SeqRange & range) const { return images_[of(range.first)]; }
    // llama.cpp's position of row n of a conversation.
    Pos pos(const SeqRange & range, int n) const;

    // Makes room for a batch. Call it before the batch runs.
    void prepare(const llama_batch & rows);

    // Closes the gaps that rejected nodes left. Call it before rows whose attention works in tiles, because gaps would
    // shift the borders of the tiles. Returns false if that is impossible, for example if other conversations have
    // cells.
    bool close_gaps_before(const SeqRange & range);

    // Keeps rows [0, n) of a conversation; n must not split an image. Returns false, without changes, if this target
    // cannot remove the other rows.
    bool truncate(const SeqRange & range, int n);
    // Returns true if truncate() can keep n rows. Recurrent states have no past, and a loaded conversation lacks the
    // rows that its windows had passed.
    bool can_end_at(const SeqRange & range, int n) const;

    // Returns true if truncate() can keep any number of rows.
    bool ends_anywhere() const { return !rules_.has_state && rules_.n_window == 0; }
    bool has_state() const { return rules_.has_state; }
    int n_window() const { return rules_.n_window; }
    // save_end() appends the windows and states that row n needs; nothing if they are gone. load_end() restores them
    // and removes the rows from n on; it returns false after an error.
    void save_end(const SeqRange & range, int n, std::vector<uint8_t> & out) const;
    bool load_end(const SeqRange & range, int n, const std::vector<uint8_t> & bytes);

    // Shares the first n rows of another conversation with this one, which must be empty.
    void copy_prefix(const SeqRange & source, const SeqRange & range, int n);

    // save_rows() appends the rows of a conversation to `out` and returns their number of bytes. load_rows() replaces a
    // conversation's rows by saved rows of any conversation of this target. It returns false if there is no room; the
    // conversation is then empty.
    size_t save_rows(const SeqRange & range, std::vector<uint8_t> & out) const;
    bool load_rows(const SeqRange & range, ByteView bytes, int n_rows);

    // Call before running drafts of this conversation. If the target copies states, saves a copy for keep_path(). The
    // copy shares the state's memory until rows are run.
    void remember(const SeqRange & range);

    // Call after verifying a tree after `n_past` rows. Makes the path to `node` part of the conversation. Returns false
    // if it had to restore the state that remember() copied; all rows run since then are lost.
    bool keep_path(const SeqRange & range, const DraftTree & tree, int node, int n_past);

    // Number of rows of a conversation in the cache. An image at the end counts in full.
    int n_rows(const SeqRange & range) const { return n_rows(range.first); }

    void clear();

    // Returns true if there are free cells for the rejected nodes that trees leave behind. Without them a tree changes
    // the order of cells; a chain never does.
    bool has_room_for_trees() const;
    // Number of times that the order of cells has changed.
    int n_order_lost() const { return n_order_lost_; }

  private:
    // llama.cpp's operations on the positions [from, to) of an id; -1 as `to` is the end.
    bool drop(llama_seq_id id, Pos from, Pos to) const {
        return llama_memory_seq_rm(llama_get_memory(ctx_), id, from, to);
    }
    void copy(llama_seq_id id, llama_seq_id other, Pos from, Pos to) const {
        llama_memory_seq_cp(llama_get_memory(ctx_), id, other, from, to);
    }
    // Last position of an id; -1 = none.
    Pos last(llama_seq_id id) const { return llama_memory_seq_pos_max(llama_get_memory(ctx_), id); }

    int of(llama_seq_id id) const { return id / n_ids(); }
    int n_rows(llama_seq_id id) const;
    bool reserves_rejected() const;
    bool borrows() const;
    void save(llama_seq_id id, llama_state_seq_flags flags, std::vector<uint8_t> & out) const;
    void reserve_rejected(const SeqRange & range, const DraftTree & tree, const std::vector<int32_t> & accepted,
                          Pos pos);
    void reserve_from(const SeqRange & range, int n);
    void go_back(const SeqRange & range);
    bool has_copy_at(const SeqRange & range, int n) const;
    bool are_others_empty(const SeqRange & range) const;
    int n_reserved() const;
    void free_reserved();
    bool close_gaps();
    void move_down(int conversation);
    int n_unused() const;
    int n_unused_min() const;

    CellRules rules_;
    llama_context * ctx_ = nullptr;
    std::vector<int> n_reserved_;  // upper bound of the reserved cells per conversation
    // By pairs of conversations: rows of a common prefix, which are stored once; 0 on the diagonal.
    std::vector<std::vector<int>> n_common_;
    std::vector<std::vector<ImageRows>> images_;  // by conversation
    std::vector<int> n_run_;                      // rows of the last batch, by conversation
    int n_order_lost_ = 0;
    bool is_shared_ = false;  // the last batch had rows of several conversations
};

}  // namespace eaglecpp
