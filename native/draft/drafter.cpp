// SPDX-License-Identifier: MIT
#include "draft/drafter.h"

#include <algorithm>

#include "base/error.h"

namespace eaglecpp {

int DraftSequence::row_of(int node) const {
    if (node == 0) return -1;
    const auto at = std::find(nodes_.begin(), nodes_.end(), node);
    if (node < 0 || at == nodes_.end()) fail(ErrorKind::value, "node %d has no draft row", node);
    return (int)(at - nodes_.begin());
}

// Commits rows of several conversations. If the rows do not fit into one graph, first commits all rows except each
// conversation's last row separately, like rows of a prompt.
void Drafter::commit_together(const std::vector<DraftRequest> & commits) {
    if (commits.empty()) return;
    std::vector<int> n_before;
    int n_rows = 0;
    for (const DraftRequest & c : commits) {
        n_before.push_back(c.seq->n_rows());
        n_rows += c.hidden_states.n_rows;
    }
    try {
        std::vector<DraftRequest> last = commits;
        for (DraftRequest & c : last) {
            HiddenStates alone = c.hidden_states;
            alone.n_rows = n_rows > n_commit_rows() ? alone.n_rows - 1 : 0;
            if (alone.n_rows == 0) continue;
            c.seq->commit(alone, c.tokens);
            c.hidden_states = c.hidden_states.from(alone.n_rows, traits().n_embd_target);
            c.tokens += alone.n_rows;
        }
        run_commits(last);
    } catch (...) {
        for (size_t i = 0; i < commits.size(); ++i) commits[i].seq->truncate(n_before[i]);
        throw;
    }
}

}  // namespace eaglecpp
