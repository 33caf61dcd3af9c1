// SPDX-License-Identifier: MIT
// Rows for one target decode. A tree becomes a batch through sequence ids: one id per leaf, every node carries the ids
// of the leaves beneath it, and llama.cpp's mask then shows a node exactly its ancestors (position and sequence both
// decide; reference: llama.cpp src/llama-kv-cache.cpp, set_input_kq_mask). Rows keep their order, so row i of the
// batch is logits row i and feature row i.
#pragma once

#include <llama.h>

#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

// Sequence ids of one conversation: [first, first + count). All of them always hold the committed prefix.
struct SeqRange {
    llama_seq_id first = 0;
    int count = 1;
    llama_seq_id held = -1;  // keeps cells of rejected nodes occupied; no row carries it
    llama_seq_id copy = -1;  // holds what a recurrent state was before drafts were run; no row carries it
};

class TargetBatch {
  public:
    void clear();
    int n_rows() const { return (int)tokens_.size(); }

    // `seqs`: the sequence ids that see this row; `state`: what a head for further tokens reads beside the token, of
    // all rows or none; it must stay where it is until the batch was run
    void add(Token token, Pos pos, const std::vector<llama_seq_id> & seqs, bool output, const float * state = nullptr);

    // a committed row: every id of the conversation sees it
    void add(Token token, Pos pos, const SeqRange & range, bool output, const float * state = nullptr);

    // A committed row of an image, n values in the place of a token; then all rows of the batch are, and with
    // `is_whole` they see each other in both directions. `values` as `state`. y, x: its place in the image, from `pos`
    // on; what a target that numbers all rows as text does not read.
    void add_image_row(const float * values, int n, Pos pos, Pos y, Pos x, const SeqRange & range, bool output,
                       bool is_whole);
    bool is_causal() const { return is_causal_; }

    // All nodes of a tree whose root is at `pos`, in index order, all with output; returns the row of the root.
    // Error(value) when the tree has more leaves than the conversation has ids.
    int add_tree(const DraftTree & tree, Pos pos, const SeqRange & range);

    // Adds n rows, as if the last one had children that nobody drafted: what they compute is dropped
    // with the rejected rows of its conversation. They repeat its token, so that a mixture reads few experts more.
    void pad(int n);

    // all rows, with states of n_state values; valid until the next change
    llama_batch view(int n_state);

  private:
    std::vector<llama_token> tokens_;
    std::vector<llama_pos> pos_, y_, x_;
    std::vector<std::vector<llama_seq_id>> seqs_;
    std::vector<int8_t> output_;
    std::vector<const float *> states_;
    int n_image_values_ = 0;  // of a row; 0 = tokens
    bool is_causal_ = true;
    // filled by view()
    std::vector<float> all_states_;
    std::vector<llama_pos> all_pos_;
    std::vector<int32_t> n_seqs_;
    std::vector<llama_seq_id *> seq_ptrs_;
};

// leaf index (into tree.leaves()) served by each id of the conversation: the first ids take a leaf each, the rest
// follow leaf 0
std::vector<int> leaf_of_seq(int n_leaves, const SeqRange & range);

}  // namespace eaglecpp
