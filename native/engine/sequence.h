// SPDX-License-Identifier: MIT
// One conversation: the state that target and drafter hold for it, and its generation while one runs.
//
// Invariants between steps:
// - The target has run tokens [0, n_past). It still holds all of these tokens except the last n_replay tokens, which it
//   must run again.
// - During a generation, after the prefill, exactly one token has not run: the root of the next round.
//   n_past == tokens.size() - 1.
// - The drafter has committed rows [0, draft.n_rows()). `hidden_states` holds the hidden states of the pending rows,
//   which are the positions [draft.n_rows(), n_past).
// - `inexact_from` is none_inexact or <= n_past.
#pragma once

#include <algorithm>
#include <climits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algo/planner.h"
#include "algo/text.h"
#include "base/error.h"
#include "base/hidden_states.h"
#include "base/types.h"
#include "draft/drafter.h"
#include "engine/drafted_depth.h"
#include "engine/images.h"
#include "engine/options.h"
#include "engine/pending_states.h"
#include "target/cells.h"
#include "target/sampler.h"
#include "target/tree_batch.h"

namespace eaglecpp {

// Counters of one generation.
struct Stats {
    int n_prompt = 0;     // prompt tokens that the target ran
    int n_reused = 0;     // prompt tokens found in the cache
    int n_predicted = 0;  // emitted tokens
    int n_rounds = 0;     // batches that the target ran after the prefill
    int n_draft = 0;      // verified draft nodes
    int n_accepted = 0;   // accepted draft nodes
    int n_text = 0;       // draft nodes that were only copied from the text
    int n_text_accepted = 0;
    double prompt_ms = 0.0;
    double predicted_ms = 0.0;            // wall time from the first token to the end of the last round
    double draft_ms = 0.0;                // time of the drafter: commits and draft rows
    double verify_ms = 0.0;               // time of the target: decodes of rounds
    std::vector<int> tried_per_depth;     // [depth - 1] rounds with a draft of this depth whose parent was accepted
    std::vector<int> accepted_per_depth;  // [depth - 1] rounds in which the target accepted a draft of this depth

    // Adds a round. Returns the number of drafts that were compared with the target, and the number of accepted drafts.
    std::pair<int, int> count(const DraftTree & tree, const MatchResult & result, bool is_first) {
        n_predicted += (int)result.tokens.size();
        if (is_first) return {0, 0};  // the first token comes with the prefill
        int n_tried = 0;
        ++n_rounds;
        n_draft += tree.n_draft();
        n_accepted += result.n_accepted();
        for (int d = 0; d < (int)result.nodes.size(); ++d) {
            const auto first = tree.parent.begin() + result.nodes[d];
            const bool has_child = std::find(first, tree.parent.end(), result.nodes[d]) != tree.parent.end();
            if (!has_child || (int)result.tokens.size() <= d) break;
            if ((int)tried_per_depth.size() <= d) {
                tried_per_depth.push_back(0);
                accepted_per_depth.push_back(0);
            }
            ++n_tried;
            ++tried_per_depth[d];
            accepted_per_depth[d] += d < result.n_accepted();
        }
        return {n_tried, std::min(n_tried, result.n_accepted())};
    }
};

// A position to which a conversation with sliding windows or a recurrent state can be cut. `bytes` comes from
// Cells::save_end(). It is empty while the cells still hold the state at this position.
struct Checkpoint {
    int n;
    std::vector<uint8_t> bytes;
};

struct Sequence {
    int id = 0;
    SeqRange range;
    Tokens tokens;  // tokens of the prompt and the answer
    int n_past = 0;
    int n_replay = 0;
    std::vector<Checkpoint> checkpoints;  // in ascending order
    int last_checkpoint() const { return checkpoints.empty() ? 0 : checkpoints.back().n; }

    std::unique_ptr<DraftSequence> draft;  // null without a drafter
    PendingStates hidden_states;
    TextIndex text;  // holds `tokens` while a generation copies drafts from them

    // First row whose bits may differ from target-only decoding with one row per batch. none_inexact if all rows are
    // exact.
    static constexpr int none_inexact = INT_MAX;
    int inexact_from = none_inexact;
    bool is_exact() const { return inexact_from == none_inexact; }
    void mark_inexact(int pos) { inexact_from = std::min(inexact_from, pos); }

    // State of the current generation.
    bool is_active = false;
    int n_prompt = 0;
    int n_max = 0;  // number of tokens at which the generation ends
    Exactness exactness = Exactness::off;
    GenerateParams params;
    std::vector<std::shared_ptr<const Image>> images;  // images of the prompt
    std::unique_ptr<Sampler> sampler;
    int n_picked = 0;  // number of largest logits picked on the target's device; 0 = the host gets all logits
    Stats stats;
    bool uses_text = false;
    bool forces = false;  // drafts tokens that the grammar forces
    SequencePlan plan;
    PlanSummary plan_summary;
    // Counters before each round of the last step(), for an error and for an answer that ends in an earlier round.
    std::vector<std::pair<Stats, PlanSummary>> rounds;
    std::vector<std::string> plan_log;
    DraftedDepth drafted_depth;
    double decode_start_ms = 0.0;
    std::optional<Error> failure;  // error of the sampler; the next step reports it and ends the generation

    bool is_prefilling() const { return is_active && n_past < n_prompt; }
    // Returns true if this conversation's part of the batch includes the last prompt token.
    bool ends_prompt() const { return n_past + plan.round.n_prompt_rows == n_prompt; }
    // Returns the position at which the prefill ends. If no answer is requested, the last prompt token does not run.
    int prompt_end() const { return n_max > n_prompt ? n_prompt : n_prompt - 1; }

    // Returns the image if the next row to run belongs to an image, or null if the next row is a token.
    const Image * image() const {
        const auto has = [&](const auto & image) { return image->has(tokens[n_past]); };
        const auto found = std::find_if(images.begin(), images.end(), has);
        return found == images.end() ? nullptr : found->get();
    }
    // Returns the number of prompt rows up to the next border between tokens and an image, or up to the prompt's end.
    int n_rows_alike() const {
        const Image * first = image();
        int end = n_past;
        if (first) return std::min(first->n_rows - (first->first - tokens[n_past]), prompt_end() - n_past);
        while (end < prompt_end() && tokens[end] >= 0) ++end;
        return end - n_past;
    }

    // Returns n if the prompt can be cut at n. If such a cut would split an image whose rows see each other or share a
    // position, returns the start of this image.
    int before_whole(const Tokens & prompt, int n) const {
        if (n == 0 || n >= (int)prompt.size() || prompt[n] >= 0) return n;
        for (const auto & image : images) {
            if ((image->is_whole || image->n_columns > 0) && image->has(prompt[n]))
                return n - (image->first - prompt[n]);
        }
        return n;
    }

    // Returns the number of rows whose hidden states the drafter has not read yet.
    int n_pending() const {
        if (!draft || !hidden_states.has(draft->n_rows())) return 0;
        return std::max(0, hidden_states.end() - draft->n_rows());
    }
    HiddenStates pending() const { return hidden_states.from(draft->n_rows()); }

    // Commits the pending rows to the drafter.
    void commit_pending() {
        if (n_pending() > 0) draft->commit(pending(), &tokens[draft->n_rows() + 1]);
    }
};

inline std::vector<SequencePlan *> plans_of(const std::vector<Sequence *> & sequences) {
    std::vector<SequencePlan *> plans;
    for (Sequence * s : sequences) plans.push_back(&s->plan);
    return plans;
}

// Minimum number of rows for which copying from another conversation is faster than computing.
constexpr int n_adopt_least = 16;

// Returns the length of the common prefix of two token lists, at most n_max.
inline int n_common(const Tokens & a, const Tokens & b, int n_max) {
    int n = 0;
    while (n < n_max && a[n] == b[n]) ++n;
    return n;
}

}  // namespace eaglecpp
