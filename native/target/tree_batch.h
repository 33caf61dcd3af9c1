// SPDX-License-Identifier: MIT
// Collects the rows for one decode of the target. In a batch, a tree has one sequence id per leaf, and every node has
// the ids of the leaves below it. llama.cpp's mask compares position and sequence, so a node sees exactly its ancestors
// (llama.cpp src/llama-kv-cache.cpp, set_input_kq_mask). Rows keep their order: row i of the batch has logits row i and
// hidden-state row i.
#pragma once

#include <llama.h>

#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

// Sequence ids of one conversation: [first, first + count). Each of these ids contains the whole committed prefix.
struct SeqRange {
    llama_seq_id first = 0;
    int count = 1;
    llama_seq_id reserved = -1;  // id that keeps the cells of rejected nodes reserved; no row uses this id
    llama_seq_id copy = -1;      // id of the copy of a recurrent state from before the drafts; no row uses this id

    // Returns the leaf of a tree with n_leaves leaves that the i-th id sees. The first ids see one leaf each; all other
    // ids see leaf 0.
    static int leaf_of(int i, size_t n_leaves) { return i < (int)n_leaves ? i : 0; }
};

class TargetBatch {
  public:
    void clear();
    int n_rows() const { return (int)tokens_.size(); }

    // Adds a row. seqs: the sequence ids that see this row. state: the state that an MTP head reads together with the
    // token. In a batch, all rows have a state or no row has a state. `state` must stay valid until the batch has run.
    void add(Token token, Pos pos, const std::vector<llama_seq_id> & seqs, bool output, const float * state = nullptr);

    // Adds a committed row, which all ids of the conversation see.
    void add(Token token, Pos pos, const SeqRange & range, bool output, const float * state = nullptr);

    // Adds a committed row of an image: n values instead of a token. Rows of images and rows of tokens cannot share a
    // batch. is_whole: the image's rows see each other in both directions. y, x: the row's position in the image,
    // counted from `pos`; ignored by targets that number image rows like text. `values` must stay valid until the batch
    // has run.
    void add_image_row(const float * values, int n, Pos pos, Pos y, Pos x, const SeqRange & range, bool output,
                       bool is_whole);
    bool is_causal() const { return is_causal_; }

    // Adds all nodes of a tree in index order, each with output. The root is at `pos`. Returns the root's row in the
    // batch. Error(value) if the tree has more leaves than the conversation has ids.
    int add_tree(const DraftTree & tree, Pos pos, const SeqRange & range);

    // Pads the batch with n rows. They are rejected children of the last row, and are removed together with the
    // rejected rows of its conversation. They repeat the last row's token, so a mixture of experts reads few additional
    // experts.
    void pad(int n);

    // Returns all rows in llama.cpp's form, with states of n_state values. The result is valid until the batch changes.
    llama_batch view(int n_state);

  private:
    std::vector<llama_token> tokens_;
    std::vector<llama_pos> pos_, y_, x_;
    std::vector<std::vector<llama_seq_id>> seqs_;
    std::vector<int8_t> output_;
    std::vector<const float *> states_;
    int n_image_values_ = 0;  // values per image row; 0 = the rows are tokens
    bool is_causal_ = true;
    // The states of all rows, filled by view().
    std::vector<float> all_states_;
    std::vector<llama_pos> all_pos_;
    std::vector<int32_t> n_seqs_;
    std::vector<llama_seq_id *> seq_ptrs_;
};

}  // namespace eaglecpp
