// SPDX-License-Identifier: MIT
// The drafter's side of one conversation. Rows are committed in order: row p pairs the target's feature at position p
// with the embedding of the token at p + 1, and lives at K/V slot and RoPE position p. Draft rows come after the
// committed ones, are fed with the state of an earlier row, and vanish with the next commit. Several conversations can
// commit or extend in one graph: the weights are then read once for all, and each gets the bits it has alone where
// products do not depend on the number of rows.
#pragma once

#include <memory>
#include <vector>

#include "draft/drafter.h"
#include "draft/inputs.h"
#include "draft/outputs.h"

namespace eaglecpp {

// The draft row of a node: `token` is embedded, the state of `parent` is fed, attention sees the committed rows, the
// chain of parents and the row itself. Nodes are numbered by the caller, as in its pool (algo/tree.h); node 0, the
// root, is the last committed row.
struct DraftRow {
    int node;
    Token token;
    int parent;  // a node with a row of an earlier call of this round, or 0
};

class DraftSequence;

// what one conversation adds to a graph of several conversations
struct DraftCommit {
    DraftSequence * seq;
    FeatureRows features;
    const Token * tokens;
    int n_ahead = 0;  // of a parallel drafter: masked rows after the last one, see DraftSequence::commit
    // Of a conversation alone, where Drafter::can_step(): so many draft rows follow in the same graph, each of which
    // embeds the likeliest token of the row before: output rows 1, 2, ... DraftSequence::take_step() gives them nodes.
    int n_steps = 0;
};

struct DraftLevel {
    DraftSequence * seq;
    std::vector<DraftRow> rows;
};

class DraftSequence {
  public:
    explicit DraftSequence(Drafter & drafter);
    ~DraftSequence();
    DraftSequence(const DraftSequence &) = delete;
    DraftSequence & operator=(const DraftSequence &) = delete;

    int n_rows() const { return kv_->n_rows; }

    // Appends rows with true features; tokens[i] is embedded in row i. With `want_output` the last row runs fully:
    // logits(0) is its draft distribution, and draft rows behind node 0 are fed its state. Drops the draft rows.
    // Appends all rows or, after an exception, none. Error(context_full)
    // `n_ahead`, for a parallel drafter with output: that many masked rows follow the last one in the same graph, and
    // logits(i) is the distribution i tokens further on. The cache keeps nothing of the masked rows.
    void commit(const FeatureRows & features, const Token * tokens, bool want_output, int n_ahead = 0);

    // Appends draft rows and runs them in one graph; logits(i) belongs to rows[i].
    void extend(const std::vector<DraftRow> & rows);

    // Step i of the commit is this row, if it was made for this token behind this parent.
    bool take_step(int i, const DraftRow & row);

    // draft rows of this round so far
    int n_draft_rows() const { return drafts_.n(); }

    // The same as commit() (with output) and extend(), for several different conversations of one drafter in one graph.
    // Appends all rows of all of them or, after an exception, none.
    static void commit_together(const std::vector<DraftCommit> & commits);
    static void extend_together(const std::vector<DraftLevel> & levels);

    // [n_draft_vocab] logits of output row i of this sequence's last call; valid until the next call of any sequence of
    // this drafter
    const float * logits(int i) { return outputs_.logits(i); }

    // the k most likely next tokens after output row i, as target ids
    std::vector<Candidate> candidates(int i, int k) { return outputs_.candidates(i, k); }

    // the k tokens after output row i that a target with this sampler most likely chooses at index `pos` of the text
    std::vector<Candidate> candidates(int i, int k, const CoupledSampling & sampling, Pos pos) {
        return outputs_.candidates(i, k, sampling, pos);
    }

    // Output row i, which is that of `node`, with what `recall` adds. The functions above take such a row in place of
    // i.
    TokenLogits recalled(int i, Recall & recall, int node, const Recall::Last & last);
    std::vector<Candidate> candidates(const TokenLogits & row, int k) { return outputs_.candidates(row, k); }
    std::vector<Candidate> candidates(const TokenLogits & row, int k, const CoupledSampling & sampling, Pos pos) {
        return outputs_.candidates(row, k, sampling, pos);
    }

    // state [H] of a node's row
    void get_state(int node, float * dst) const;
    void set_state(int node, const float * src);

    // The first n committed rows: returns them as bytes, or replaces this conversation's rows by those saved from any
    // conversation of this drafter.
    std::vector<uint8_t> save_rows(int n) const;
    void load_rows(const std::vector<uint8_t> & bytes, int n);

    // keeps the first n committed rows; drops the draft rows
    void truncate(int n_rows);

    const DraftKv & kv() const { return *kv_; }

  private:
    // of several in one graph
    struct Turn {
        DraftSequence * seq;
        DraftCall call;
    };

    int n_padded(int n_rows) const;
    int n_slots_read(int n_used) const;
    DraftCall commit_call(const FeatureRows & features, const Token * tokens, bool want_output, int n_ahead) const;
    DraftCall extend_call(const std::vector<DraftRow> & rows, std::vector<Token> & tokens);
    static void run(const std::vector<Turn> & turns, int n_steps = 0);
    void add_steps(const DraftGraph & g);
    void check_room(int n_rows) const;
    int row_of(int node) const;
    void drop_drafts(int n_left);

    Drafter & drafter_;
    std::unique_ptr<DraftKv> kv_;
    GraphCache graphs_;  // with this conversation alone
    Ancestry drafts_;
    std::vector<int32_t> nodes_;  // of the draft rows; -1: a step that was not taken
    DraftOutputs outputs_;        // of the last call
    std::vector<float> state_;    // kept to save allocations
};

}  // namespace eaglecpp
