// SPDX-License-Identifier: MIT
// What the engine and the planner ask of a drafter, whatever runs it: our own graphs for one that reads the target's
// features (feature_drafter.h), or a model of llama.cpp (engine/model_drafter.h).
//
// A conversation's rows are committed in order. Row p embeds the token at p + 1 of the text, beside the target's
// feature at position p where the drafter reads features, and its output is the draft distribution of token p + 2.
// Of a block drafter the row is the feature alone, and the last token is the anchor that its block begins with.
// Draft rows come after the committed ones, follow an earlier draft row or the last committed one, and vanish with the
// next commit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algo/coupled.h"
#include "algo/topk.h"
#include "base/features.h"
#include "base/memory.h"
#include "base/types.h"

namespace eaglecpp {

// The draft row of a node. Nodes are numbered by the caller, as in its pool (algo/tree.h); node 0, the root, is the
// last committed row.
struct DraftRow {
    int node;
    Token token;
    int parent;  // a node with a row of an earlier call of this round, or 0
};

// A drafter's side of one conversation.
class DraftSequence {
  public:
    virtual ~DraftSequence() = default;

    virtual int n_rows() const = 0;  // committed

    // Appends rows without output and drops the draft rows. tokens[i] is embedded in row i; the text before it lies
    // before it in memory. Appends all rows or, after an exception, none. Error(context_full)
    virtual void commit(const FeatureRows & features, const Token * tokens) = 0;

    // The k most likely next tokens after output row i of this sequence's last call, as target ids; valid until the
    // next call of any sequence of this drafter. Fewer where the drafter has no more to say. With `sampling`: those
    // that a target with this sampler most likely chooses at index `pos` of the text.
    virtual std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling = {},
                                              Pos pos = 0) = 0;

    // Step i of the commit is this row, if it was made for this token behind this parent.
    virtual bool take_step(int i, const DraftRow & row) = 0;

    // The first n committed rows: appends them to `out`, or replaces this conversation's rows by those saved from any
    // conversation of this drafter.
    virtual void save_rows(int n, std::vector<uint8_t> & out) const = 0;
    virtual void load_rows(ByteView bytes, int n) = 0;

    // whether these bytes can be n rows that save_rows() gave; they may come from a file
    virtual bool fits(ByteView bytes, int n) const = 0;

    // keeps the first n committed rows; drops the draft rows
    virtual void truncate(int n_rows) = 0;

    // The last positions that rows of the next calls see, of those that they can see; 0 = all. Drafters that llama.cpp
    // runs see all.
    int window = 0;

  protected:
    // The draft row of a node, -1 for the last committed row. Error(value)
    int row_of(int node) const;

    std::vector<int32_t> nodes_;  // of the draft rows; -1: a step that was not taken
};

// One conversation's part of a call for several: rows to commit, or draft rows.
struct DraftRequest {
    DraftSequence * seq;
    FeatureRows features = {};
    const Token * tokens = nullptr;  // as in DraftSequence::commit
    // where DraftTraits::n_levels_max > 0: the tokens further on that this pass is to give. Of a parallel drafter
    // output rows 1 to n_ahead are their distributions; else draft rows ask for them
    int n_ahead = 0;
    // Of a conversation alone, where Drafter::can_step(): draft rows that follow in the same graph. Each embeds the
    // likeliest token of the row before. They are output rows 1, 2, ...; DraftSequence::take_step() gives them nodes.
    int n_steps = 0;
    std::vector<DraftRow> rows = {};  // of one draft step; instead of all above

    static DraftRequest step(DraftSequence * seq, const std::vector<DraftRow> & rows) {
        return {seq, {}, nullptr, 0, 0, rows};
    }
};

// What of a drafter decides how it is asked.
struct DraftTraits {
    int n_aux = 0;  // features of a row, n_embd_target values each; 0 = it reads tokens alone
    int n_embd_target = 0;
    int n_draft_rows_max = 0;  // of a round
    int n_level_rows_max = 0;  // of one conversation in a call
    int n_block_rows = 0;      // that a commit with output runs beside those that it appends
    int n_levels_max = 0;      // most tokens that one pass gives; 0 = any number, by draft rows
    bool can_narrow = false;   // it sees the whole text, and DraftSequence::window narrows that
    bool is_parallel = false;  // it gives them with the commit, whatever was drafted before them: no draft rows
    std::vector<float> held_out_rates;  // acceptance per depth that its training measured; empty: not known
};

// What users are told of a drafter.
struct DraftDescription {
    std::string kind;  // "eagle" | "DFlash" | "DSpark" | "DFlash2" | "model" | "head"
    // of one that reads features its DraftFile says the rest
    std::string arch = "", name = "";
    int n_layer = 0, n_ctx_train = 0, n_embd = 0, n_vocab = 0;
};

class Drafter {
  public:
    virtual ~Drafter() = default;

    virtual DraftTraits traits() const = 0;
    virtual DraftDescription describe() const = 0;

    // `conversation`: 0 to the engine's number of them - 1, and no other open one's. Error(out_of_memory)
    virtual std::unique_ptr<DraftSequence> open(int conversation) = 0;

    // As DraftSequence::commit with output row 0, the draft distribution of the last row, and a step of draft rows,
    // whose output rows are theirs: several different conversations in one call. Appends all rows of all of them or,
    // after an exception, none.
    void commit_together(const std::vector<DraftRequest> & commits);
    virtual void extend_together(const std::vector<DraftRequest> & steps) = 0;

    // draft rows, the likeliest ones, can follow a commit in its graph
    virtual bool can_step() const { return false; }

    // for all calls from now on, where it runs on the CPU
    virtual void set_n_threads(int n_threads) = 0;

    virtual std::string device_name() const = 0;
    // of all conversations; a device may come more than once
    virtual std::vector<MemoryUse> memory_use() const = 0;

  private:
    // Appends rows as commit_together(); after an exception the caller truncates. n_commit_rows(): of all
    // conversations, how many it takes together.
    virtual int n_commit_rows() const = 0;
    virtual void run_commits(const std::vector<DraftRequest> & commits) = 0;
};

}  // namespace eaglecpp
