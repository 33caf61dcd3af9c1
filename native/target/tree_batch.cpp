// SPDX-License-Identifier: MIT
#include "target/tree_batch.h"

#include "base/error.h"

namespace eaglecpp {

void TargetBatch::clear() {
    tokens_.clear();
    pos_.clear();
    y_.clear();
    x_.clear();
    seqs_.clear();
    output_.clear();
    states_.clear();
    n_image_values_ = 0;
    is_causal_ = true;
}

void TargetBatch::add(Token token, Pos pos, const std::vector<llama_seq_id> & seqs, bool output, const float * state) {
    tokens_.push_back(token);
    pos_.push_back(pos);
    seqs_.push_back(seqs);
    output_.push_back(output);
    states_.push_back(state);
}

void TargetBatch::add(Token token, Pos pos, const SeqRange & range, bool output, const float * state) {
    std::vector<llama_seq_id> seqs(range.count);
    for (int i = 0; i < range.count; ++i) seqs[i] = range.first + i;
    add(token, pos, seqs, output, state);
}

void TargetBatch::add_image_row(const float * values, int n, Pos pos, Pos y, Pos x, const SeqRange & range, bool output,
                                bool is_whole) {
    add(0, pos, range, output, values);
    y_.push_back(y);
    x_.push_back(x);
    n_image_values_ = n;
    is_causal_ = !is_whole;
}

int TargetBatch::add_tree(const DraftTree & tree, Pos pos, const SeqRange & range) {
    const std::vector<int32_t> leaves = tree.leaves();
    fail_if((int)leaves.size() > range.count, ErrorKind::value,
            "the tree has %zu leaves, but the conversation has %d sequence ids; raise n_leaves_max", leaves.size(),
            range.count);
    std::vector<std::vector<llama_seq_id>> seqs(tree.size());
    for (int i = 0; i < range.count; ++i) {
        const int leaf = leaves[SeqRange::leaf_of(i, leaves.size())];
        for (int node = leaf; node >= 0; node = tree.parent[node]) seqs[node].push_back(range.first + i);
    }
    const int root = n_rows();
    for (int node = 0; node < tree.size(); ++node) {
        add(tree.token[node], pos + tree.depth[node], seqs[node], /*output=*/true);
    }
    return root;
}

void TargetBatch::pad(int n) {
    for (; n > 0; --n) add(tokens_.back(), pos_.back() + 1, std::vector<llama_seq_id>(seqs_.back()), true);
}

llama_batch TargetBatch::view(int n_state) {
    llama_batch out;
    n_seqs_.resize(n_rows());
    seq_ptrs_.resize(n_rows());
    for (int i = 0; i < n_rows(); ++i) {
        n_seqs_[i] = (int32_t)seqs_[i].size();
        seq_ptrs_[i] = seqs_[i].data();
    }
    out.n_tokens = n_rows();
    out.token = n_image_values_ > 0 ? nullptr : tokens_.data();
    // llama.cpp reads the states for MTP heads from the embeddings of a batch.
    all_states_.clear();
    const int n_values = n_image_values_ > 0 ? n_image_values_ : n_state;
    for (const float * state : states_) {
        if (state) all_states_.insert(all_states_.end(), state, state + n_values);
    }
    out.embd = all_states_.empty() ? nullptr : all_states_.data();
    // For rows without tokens, llama.cpp expects four lists of positions from targets with M-RoPE.
    out.pos = pos_.data();
    if (n_image_values_ > 0) {
        all_pos_ = pos_;
        for (const auto * more : {&y_, &x_}) all_pos_.insert(all_pos_.end(), more->begin(), more->end());
        all_pos_.resize(4 * pos_.size(), 0);
        out.pos = all_pos_.data();
    }
    out.n_seq_id = n_seqs_.data();
    out.seq_id = seq_ptrs_.data();
    out.logits = output_.data();
    return out;
}

}  // namespace eaglecpp
