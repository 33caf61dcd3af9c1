// SPDX-License-Identifier: MIT
// Interface of drafters for the engine and the planner. It has two implementations: our graphs, for drafters that read
// the target's hidden states (hidden_state_drafter.h), and models that llama.cpp runs (engine/model_drafter.h).
//
// The rows of a conversation are committed in order. Row p embeds the text's token p + 1. If the drafter reads hidden
// states, row p also reads the target's hidden state at position p. The row's output is the draft distribution of token
// p + 2. In a block drafter, a committed row is only a hidden state, and the text's last token is the anchor at the
// start of the block. Draft rows come after the committed rows. Each draft row follows an earlier draft row or the last
// committed row. The next commit drops all draft rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algo/coupled.h"
#include "base/hidden_states.h"
#include "base/memory.h"
#include "base/types.h"

namespace eaglecpp {

// The drafter's row for a draft node. The caller numbers nodes by their indices in the draft pool (algo/tree.h). Node 0
// is the root: the last committed row.
struct DraftRow {
    int node;
    Token token;
    int parent;  // parent node: 0, or a node with a row from an earlier call of this round
};

// One conversation of a drafter.
class DraftSequence {
  public:
    virtual ~DraftSequence() = default;

    virtual int n_rows() const = 0;  // number of committed rows

    // Appends rows without output and drops the draft rows. Row i embeds tokens[i]. The earlier tokens of the text must
    // be in memory directly before tokens[0]. After an exception, no row is appended. Error(context_full)
    virtual void commit(const HiddenStates & hidden_states, const Token * tokens) = 0;

    // Returns the k most likely next tokens after output row i of this sequence's last call, as target ids. Returns
    // fewer tokens if the drafter has fewer. Call this function before the next call of any sequence of this drafter.
    // With `sampling`, returns the tokens that a target with this sampler most likely chooses at index `pos` of the
    // text.
    virtual std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling = {},
                                              Pos pos = 0) = 0;

    // Assigns draft step i of the last commit (DraftRequest::n_steps) to the node `row.node`. Returns false if the step
    // ran for another token or parent.
    virtual bool take_step(int i, const DraftRow & row) = 0;

    // save_rows() appends the first n committed rows to `out`. load_rows() replaces this conversation's rows by n saved
    // rows. Any conversation of this drafter may have saved the rows.
    virtual void save_rows(int n, std::vector<uint8_t> & out) const = 0;
    virtual void load_rows(ByteView bytes, int n) = 0;

    // Returns true if `bytes` has the form of n saved rows. The bytes may come from an untrusted file.
    virtual bool fits(ByteView bytes, int n) const = 0;

    // Keeps the first n committed rows and drops all draft rows.
    virtual void truncate(int n_rows) = 0;

    // Window of the next calls (algo/windows.h). Drafters that llama.cpp runs ignore it and attend to all positions.
    int window = 0;

  protected:
    // Returns the index of a node's draft row, or -1 for the last committed row. Error(value)
    int row_of(int node) const;

    std::vector<int32_t> nodes_;  // node of each draft row; -1 = a draft step that has no node
};

// The part of one conversation in a call: rows to commit, or draft rows.
struct DraftRequest {
    DraftSequence * seq;
    HiddenStates hidden_states = {};
    const Token * tokens = nullptr;  // see DraftSequence::commit
    // Number of additional tokens that this pass must give, if DraftTraits::depth_max > 0. For a parallel drafter,
    // output rows 1 to n_ahead are the distributions of these tokens. For other drafters, draft rows request the
    // tokens.
    int n_ahead = 0;
    // Number of draft rows in the commit's graph. Must be 0 for several conversations or without Drafter::can_step().
    // Each of these rows embeds the likeliest token of the previous row. They are output rows 1, 2, ...
    // DraftSequence::take_step() assigns nodes to these rows.
    int n_steps = 0;
    std::vector<DraftRow> rows = {};  // rows of one draft step; if not empty, the fields above are unused

    static DraftRequest step(DraftSequence * seq, const std::vector<DraftRow> & rows) {
        return {seq, {}, nullptr, 0, 0, rows};
    }
};

// Properties of a drafter that the engine plans with.
struct DraftTraits {
    int n_aux = 0;  // number of hidden states per row, each of n_embd_target values; 0 = the drafter reads only tokens
    int n_embd_target = 0;
    int n_draft_rows_max = 0;  // maximum number of draft rows per round
    int n_step_rows_max = 0;   // maximum number of draft rows per conversation and call
    int n_block_rows = 0;      // number of extra rows that a commit with output runs and then drops
    int depth_max = 0;         // maximum number of draft tokens per pass; 0 = no limit
    bool can_narrow = false;  // DraftSequence::window can limit what the drafter sees; otherwise it sees the whole text
    bool is_parallel = false;  // a commit gives all draft tokens, independently of each other; there are no draft rows
    std::vector<float> held_out_rates;  // acceptance per depth measured in training; empty = unknown
};

// Description of a drafter for users.
struct DraftDescription {
    std::string kind;  // "eagle" | "DFlash" | "DSpark" | "DFlash2" | "model" | "head"
    // Architecture and name of a model or head; empty for other drafters, which are described by DraftFile.
    std::string arch = "", name = "";
    int n_layer = 0, n_ctx_train = 0, n_embd = 0, n_vocab = 0;
};

class Drafter {
  public:
    virtual ~Drafter() = default;

    virtual DraftTraits traits() const = 0;
    virtual DraftDescription describe() const = 0;

    // Opens a conversation. `conversation` is its number, from 0 to the number of conversations - 1. A conversation
    // with this number must not be open. Error(out_of_memory)
    virtual std::unique_ptr<DraftSequence> open(int conversation) = 0;

    // Both functions handle several different conversations in one call. commit_together() works like
    // DraftSequence::commit, and output row 0 is the draft distribution of the last committed row. extend_together()
    // runs a step of draft rows; each row has an output. After an exception, no row is appended.
    void commit_together(const std::vector<DraftRequest> & commits);
    virtual void extend_together(const std::vector<DraftRequest> & steps) = 0;

    // Returns true if a commit's graph can also run draft rows for the likeliest tokens (DraftRequest::n_steps).
    virtual bool can_step() const { return false; }

    // Sets the number of threads of later calls. Has no effect on devices.
    virtual void set_n_threads(int n_threads) = 0;

    virtual std::string device_name() const = 0;
    // Returns the memory of all conversations, by device. A device may appear more than once.
    virtual std::vector<MemoryUse> memory_use() const = 0;

  private:
    // run_commits() appends the rows of commit_together(). After an exception, commit_together() removes them.
    // n_commit_rows() is the maximum number of rows of all conversations together.
    virtual int n_commit_rows() const = 0;
    virtual void run_commits(const std::vector<DraftRequest> & commits) = 0;
};

}  // namespace eaglecpp
