// SPDX-License-Identifier: MIT
// Interface of drafters for the engine and the planner. Implementations: our graphs for drafters that read the target's
// hidden states (hidden_state_drafter.h), and models that llama.cpp runs (engine/model_drafter.h).
//
// The rows of a conversation are committed in order. Row p embeds the text's token p + 1, along with the target's
// hidden state at position p if the drafter reads hidden states. Its output is the draft distribution of token p + 2.
// In a block drafter the row is only the hidden state, and the last token is the anchor at the start of its block.
// Draft rows come after the committed rows, follow an earlier draft row or the last committed row, and are dropped by
// the next commit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algo/coupled.h"
#include "algo/topk.h"
#include "base/hidden_states.h"
#include "base/memory.h"
#include "base/types.h"

namespace eaglecpp {

// The draft row of a node. The caller numbers the nodes, as in its pool (algo/tree.h). Node 0, the root, is the last
// committed row.
struct DraftRow {
    int node;
    Token token;
    int parent;  // a node with a row from an earlier call of this round, or 0
};

// One conversation of a drafter.
class DraftSequence {
  public:
    virtual ~DraftSequence() = default;

    virtual int n_rows() const = 0;  // committed rows

    // Appends rows without output and drops the draft rows. Row i embeds tokens[i]; the text before it must precede it
    // in memory. Appends all rows or, after an exception, no row. Error(context_full)
    virtual void commit(const HiddenStates & hidden_states, const Token * tokens) = 0;

    // Returns the k most likely next tokens after output row i of this sequence's last call, as target ids, or fewer if
    // the drafter has no more. Valid until the next call of any sequence of this drafter. With `sampling`: the tokens
    // that a target with this sampler most likely chooses at index `pos` of the text.
    virtual std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling = {},
                                              Pos pos = 0) = 0;

    // Makes step i of the commit this row. Returns false if the step was run for another token or parent.
    virtual bool take_step(int i, const DraftRow & row) = 0;

    // Appends the first n committed rows to `out`, or replaces this conversation's rows by rows saved from any
    // conversation of this drafter.
    virtual void save_rows(int n, std::vector<uint8_t> & out) const = 0;
    virtual void load_rows(ByteView bytes, int n) = 0;

    // Returns true if these bytes can be n rows of save_rows(). They may come from a file.
    virtual bool fits(ByteView bytes, int n) const = 0;

    // Keeps the first n committed rows; drops the draft rows.
    virtual void truncate(int n_rows) = 0;

    // Number of last positions visible to the rows of the next calls; 0 = all. Drafters that llama.cpp runs always see
    // all.
    int window = 0;

  protected:
    // Returns the draft row of a node, -1 for the last committed row. Error(value)
    int row_of(int node) const;

    std::vector<int32_t> nodes_;  // nodes of the draft rows; -1 = a step that was not used
};

// One conversation's part of a call: rows to commit, or draft rows.
struct DraftRequest {
    DraftSequence * seq;
    HiddenStates hidden_states = {};
    const Token * tokens = nullptr;  // see DraftSequence::commit
    // If DraftTraits::depth_max > 0: number of further tokens that this pass must give. For a parallel drafter,
    // output rows 1 to n_ahead are their distributions; otherwise draft rows ask for them.
    int n_ahead = 0;
    // For a single conversation, if Drafter::can_step(): draft rows that follow in the same graph. Each one embeds the
    // likeliest token of the previous row. They are output rows 1, 2, ...; DraftSequence::take_step() assigns nodes to
    // them.
    int n_steps = 0;
    std::vector<DraftRow> rows = {};  // of one draft step; replaces the fields above

    static DraftRequest step(DraftSequence * seq, const std::vector<DraftRow> & rows) {
        return {seq, {}, nullptr, 0, 0, rows};
    }
};

// Properties of a drafter that the engine plans with.
struct DraftTraits {
    int n_aux = 0;  // hidden states per row, n_embd_target values each; 0 = reads only tokens
    int n_embd_target = 0;
    int n_draft_rows_max = 0;           // per round
    int n_step_rows_max = 0;            // per conversation and call
    int n_block_rows = 0;               // extra rows that a commit with output runs without keeping them
    int depth_max = 0;                  // maximum number of tokens per pass; 0 = no limit, by draft rows
    bool can_narrow = false;            // sees the whole text unless DraftSequence::window limits it
    bool is_parallel = false;           // one commit gives all tokens, independently of each other; no draft rows
    std::vector<float> held_out_rates;  // acceptance per depth measured in training; empty = unknown
};

// Description of a drafter for users.
struct DraftDescription {
    std::string kind;  // "eagle" | "DFlash" | "DSpark" | "DFlash2" | "model" | "head"
    // Set only for models and heads; see DraftFile for the other drafters.
    std::string arch = "", name = "";
    int n_layer = 0, n_ctx_train = 0, n_embd = 0, n_vocab = 0;
};

class Drafter {
  public:
    virtual ~Drafter() = default;

    virtual DraftTraits traits() const = 0;
    virtual DraftDescription describe() const = 0;

    // conversation: 0 to the number of conversations - 1, not open yet. Error(out_of_memory)
    virtual std::unique_ptr<DraftSequence> open(int conversation) = 0;

    // commit_together() is DraftSequence::commit with an output: output row 0 is the draft distribution of the last
    // row. extend_together() runs a step of draft rows, all with output. Both take several different conversations in
    // one call, and append all rows or, after an exception, no row.
    void commit_together(const std::vector<DraftRequest> & commits);
    virtual void extend_together(const std::vector<DraftRequest> & steps) = 0;

    // Returns true if the likeliest draft rows can follow a commit in its graph.
    virtual bool can_step() const { return false; }

    // Sets the number of threads of later calls; ignored on devices.
    virtual void set_n_threads(int n_threads) = 0;

    virtual std::string device_name() const = 0;
    // Memory of all conversations; a device may appear more than once.
    virtual std::vector<MemoryUse> memory_use() const = 0;

  private:
    // Appends rows for commit_together(), which truncates after an exception. n_commit_rows(): maximum number of rows
    // of all conversations together.
    virtual int n_commit_rows() const = 0;
    virtual void run_commits(const std::vector<DraftRequest> & commits) = 0;
};

}  // namespace eaglecpp
