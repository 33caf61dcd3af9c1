// SPDX-License-Identifier: MIT
// Acceptance by sample and match. At each node the target's own sampler chooses the next token from the target's own
// distribution there; if a child carries that token the walk goes on to it, else the token is the bonus token and the
// walk ends. The sampler is asked exactly once per emitted token and in the order of plain decoding, so the same seed
// gives the same tokens with or without drafting, whatever was drafted.
#pragma once

#include <optional>
#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

struct MatchResult {
    std::vector<int32_t> nodes;  // the root, then the accepted drafts
    Tokens tokens;               // emitted tokens: the accepted drafts, then the bonus token if there is one
    bool stopped = false;        // `sample` asked to stop after the last token, or gave none

    int n_accepted() const { return (int)nodes.size() - 1; }
    bool has_bonus() const { return (int)tokens.size() > n_accepted(); }
};

// What the target chose at a node.
struct Choice {
    Token token;
    bool stop;  // nothing may follow this token (end of generation, token limit)
};

// sample(node) -> std::optional<Choice>, none where it fails; called for the root first, then for each accepted node
template <typename Sample>
MatchResult match(const DraftTree & tree, Sample && sample) {
    MatchResult out;
    int node = 0;
    while (node >= 0) {
        out.nodes.push_back(node);
        if (out.stopped) break;
        const std::optional<Choice> choice = sample(node);
        out.stopped = !choice || choice->stop;
        if (!choice) break;
        out.tokens.push_back(choice->token);
        node = tree.child(node, choice->token);
    }
    return out;
}

}  // namespace eaglecpp
