// SPDX-License-Identifier: MIT
// Writes the inputs of a graph, conversation by conversation: hidden states, token embeddings, positions, the slots
// that rows write, and the slots that rows see.
#pragma once

#include <cstdint>
#include <vector>

#include "algo/tree.h"
#include "base/hidden_states.h"
#include "draft/drafter.h"
#include "draft/graph.h"

namespace eaglecpp {

// The ancestry of the draft rows of a round: the parent of each row (-1 = the last committed row) and its position.
struct Ancestry {
    std::vector<int32_t> parents, positions;

    int n() const { return (int)parents.size(); }
    void resize(int n) {
        parents.resize(n);
        positions.resize(n);
    }
};

// The rows of one conversation in a graph.
struct DraftCall {
    DraftSequence * seq;
    const Token * tokens;        // token that each row embeds; for a block only the text's last token, the anchor
    HiddenStates hidden_states;  // for a commit: hidden states of all rows except masked rows
    std::vector<int32_t> pos;    // position of each row
    std::vector<int32_t> feeds;  // for an extend call: state slot that each row reads
    const Ancestry * drafts;  // for an extend call: all draft rows so far, with this call's rows last; null in a block
    int first_slot, first_state;
    int n_out;
    int n_ahead;  // number of masked rows, which are the last rows
    bool is_commit, is_block;
    GraphPart part;

    int n() const { return (int)pos.size(); }
    Token token(int i) const { return stand_in(tokens[i]); }
    int n_idle() const { return part.n_rows - n(); }
};

// Writes the inputs of a graph, with one call per part of its shape. `bytes` is memory that is copied to graph.packed
// before the graph starts, or the memory of graph.packed itself. Padding rows come first, because only the last rows of
// a commit run fully. Padding rows write to slots that are never read.
void write_inputs(const DraftSpec & spec, const DraftWeights & weights, const DraftGraph & graph, uint8_t * bytes,
                  const std::vector<DraftCall> & calls);

}  // namespace eaglecpp
