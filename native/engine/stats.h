// SPDX-License-Identifier: MIT
// Counters of one generation; always on.
#pragma once

#include <algorithm>
#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

struct Stats {
    int n_prompt = 0;     // prompt tokens run by the target
    int n_reused = 0;     // prompt tokens found in the cache
    int n_predicted = 0;  // tokens emitted
    int n_rounds = 0;     // target forwards after the prefill
    int n_draft = 0;      // draft nodes verified
    int n_accepted = 0;   // of these, accepted
    int n_text = 0;       // draft nodes that only the text itself proposed
    int n_text_accepted = 0;
    double prompt_ms = 0.0;
    double predicted_ms = 0.0;            // wall time from the first token to the end of the last round
    double draft_ms = 0.0;                // drafter: commit and draft rows
    double verify_ms = 0.0;               // target: decode
    std::vector<int> tried_per_depth;     // [depth - 1] rounds in which a draft of this depth could have been accepted
    std::vector<int> accepted_per_depth;  // [depth - 1] and was

    void count(const DraftTree & tree, const MatchResult & result, bool is_first) {
        n_predicted += (int)result.tokens.size();
        if (is_first) return;  // the first token comes with the prefill
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
            ++tried_per_depth[d];
            accepted_per_depth[d] += d < result.n_accepted();
        }
    }
};

}  // namespace eaglecpp
