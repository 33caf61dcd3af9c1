// SPDX-License-Identifier: MIT
// What verification told about the drafts of one generation, kept where GenerateParams::n_record asks for it. The
// target's distributions behind tokens that it did not choose are labels that no text holds: a drafter learns from
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "algo/tree.h"

namespace eaglecpp {

struct VerifiedDrafts {
    // by round: place of the root among the text's tokens, and the number of drafts
    std::vector<int32_t> root, n_drafts;
    // by draft: its token, its parent in the round's tree (0 = the root, n = the n-th draft), whether it was accepted
    std::vector<int32_t> token, parent;
    std::vector<uint8_t> accepted;
    // by draft that was not accepted: the target's likeliest next tokens behind it, n_record of them, and the
    // logarithms of their probabilities in the whole vocabulary
    std::vector<int32_t> ids;
    std::vector<float> logp;

    void add_round(int root_place, const DraftTree & tree) {
        root.push_back(root_place);
        n_drafts.push_back(tree.n_draft());
        token.insert(token.end(), tree.token.begin() + 1, tree.token.end());
        parent.insert(parent.end(), tree.parent.begin() + 1, tree.parent.end());
        accepted.resize(token.size(), 0);
    }
};

}  // namespace eaglecpp
