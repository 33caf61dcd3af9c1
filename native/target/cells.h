// SPDX-License-Identifier: MIT
// Tracks which cells of the target's cache belong to which conversation. Attention adds in the order of the cells. So
// some cells stay reserved after their rows were dropped, and the remaining rows keep their order.
//
// Callers count the rows of a conversation's text. These numbers are also llama.cpp's positions, unless a target
// numbers the rows of an image in three dimensions (M-RoPE). With M-RoPE, all rows of an image share one position, and
// the text after the image continues after max(rows, columns) positions.
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
    int n_draft_max = 0;         // maximum draft nodes per round and conversation
    int n_leaves_max = 1;        // maximum leaves per round and conversation
    bool is_shared = false;      // conversations share batches and the cache
    bool adds_in_order = false;  // attention adds in the order of the cells
    bool has_state = false;      // recurrent target: each conversation has a state
    bool copies_states = false;  // llama.cpp keeps no past states of this target
    int n_window = 0;            // length of sliding windows; 0 = no windows, or the target is recurrent
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

    // n_ids() returns the number of sequence ids per conversation, and seqs() the ids of one conversation.
    int n_ids() const { return rules_.n_leaves_max + (reserves_rejected() || rules_.copies_states ? 1 : 0); }
    SeqRange seqs(int conversation) const;
    // Number of all sequence ids, including the id that save_end() borrows.
    int n_seqs() const { return rules_.n_conversations * n_ids() + borrows(); }

    // Sets the images of a conversation's text. The images must match the conversation's rows in the cache.
    void set_images(const SeqRange & range, std::vector<ImageRows> v) { images_[of(range.first)] = std::move(v); }
    const std::vector<ImageRows> & images(const SeqRange & range) const { return images_[of(range.first)]; }
    // Returns llama.cpp's position of row n of a conversation.
    Pos pos(const SeqRange & range, int n) const;

    // Makes room for a batch in the cache. Call this function before the batch runs.
    void prepare(const llama_batch & rows);

    // Closes the gaps that rejected nodes left. Call this function before rows whose attention works in tiles, because
    // gaps would shift the borders of the tiles. Returns false if closing the gaps is impossible, for example if other
    // conversations have cells.
    bool close_gaps_before(const SeqRange & range);

    // Keeps rows [0, n) of a conversation and removes all later rows. n must not split an image. Returns false, without
    // changes, if this target cannot remove the later rows.
    bool truncate(const SeqRange & range, int n);
    // Returns true if truncate() can keep n rows. A recurrent state cannot return to an earlier row. A loaded
    // conversation lacks rows that a sliding window had passed before the conversation was saved.
    bool can_end_at(const SeqRange & range, int n) const;

    // Returns true if truncate() can keep any number of rows of any conversation.
    bool ends_anywhere() const { return !rules_.has_state && rules_.n_window == 0; }
    bool has_state() const { return rules_.has_state; }
    int n_window() const { return rules_.n_window; }
    // save_end() appends the windows and states that are needed to continue after n rows. It appends nothing if the
    // cache no longer has them. load_end() restores these windows and states and removes the rows from n on. It returns
    // false after an error.
    void save_end(const SeqRange & range, int n, std::vector<uint8_t> & out) const;
    bool load_end(const SeqRange & range, int n, const std::vector<uint8_t> & bytes);

    // Shares the first n rows of conversation `source` with conversation `range`, which must be empty.
    void copy_prefix(const SeqRange & source, const SeqRange & range, int n);

    // save_rows() appends the rows of a conversation to `out` and returns their number of bytes. load_rows() replaces a
    // conversation's rows by saved rows of any conversation of this target. If the cache has no room, load_rows()
    // returns false and the conversation is empty.
    size_t save_rows(const SeqRange & range, std::vector<uint8_t> & out) const;
    bool load_rows(const SeqRange & range, ByteView bytes, int n_rows);

    // Call this function before running drafts of this conversation. If the target copies states, saves a copy of the
    // state for keep_path(). The copy shares the state's memory until rows run.
    void remember(const SeqRange & range);

    // Call this function after verifying a tree that begins after `n_past` rows. Makes the path to `node` part of the
    // conversation. Returns false if it had to restore the state that remember() copied. All rows since remember() are
    // then lost.
    bool keep_path(const SeqRange & range, const DraftTree & tree, int node, int n_past);

    // Number of rows of a conversation in the cache. An image at the end counts with all of its rows.
    int n_rows(const SeqRange & range) const { return n_rows(range.first); }

    void clear();

    // Returns true if free cells are left to reserve for the rejected nodes of trees. Without free cells, a tree
    // changes the order of the cells. A chain never changes the order.
    bool has_room_for_trees() const;
    // Number of times that the order of cells has changed.
    int n_order_lost() const { return n_order_lost_; }

  private:
    // These functions are llama.cpp's operations on the positions [from, to) of a sequence id; to = -1 means the end.
    bool drop(llama_seq_id id, Pos from, Pos to) const {
        return llama_memory_seq_rm(llama_get_memory(ctx_), id, from, to);
    }
    void copy(llama_seq_id id, llama_seq_id other, Pos from, Pos to) const {
        llama_memory_seq_cp(llama_get_memory(ctx_), id, other, from, to);
    }
    // Returns the last position of a sequence id, or -1 if it has no rows.
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
    std::vector<int> n_reserved_;  // upper bound of the number of reserved cells, by conversation
    // [a][b]: number of rows of the common prefix of conversations a and b, which are stored once; 0 if a = b.
    std::vector<std::vector<int>> n_common_;
    std::vector<std::vector<ImageRows>> images_;  // images of each conversation
    std::vector<int> n_run_;                      // number of rows of each conversation in the last batch
    int n_order_lost_ = 0;
    bool is_shared_ = false;  // the last batch had rows of several conversations
};

}  // namespace eaglecpp
