// SPDX-License-Identifier: MIT
#include "engine/draft_vocabulary.h"

#include <llama.h>

#include <algorithm>

#include "kernels/table.h"

namespace eaglecpp {

using kernels::n_group;

static constexpr int n_first = 16384;      // number of tokens at the start of the vocabulary that are always computed
static constexpr int n_recent_max = 1024;  // number of recent groups after which earlier groups are dropped

DraftVocabulary::DraftVocabulary(const llama_vocab * vocab) {
    const int n = llama_vocab_n_tokens(vocab);
    if (n < 2 * n_first) return;
    states_.assign((n + n_group - 1) / n_group, absent);
    chosen_.n_out = n;
    std::fill_n(states_.begin(), n_first / n_group, always);
    for (Token t = 0; t < n; ++t) {
        if (llama_vocab_is_eog(vocab, t)) states_[t / n_group] = always;
    }
    has_changed_ = true;
}

// Approximates the most recently used groups: when `recent` is full, its groups become the earlier groups.
void DraftVocabulary::add(Token token) {
    const size_t group = (size_t)token / n_group;
    if (group >= states_.size() || states_[group] >= recent) return;
    has_changed_ |= states_[group] == absent;
    states_[group] = recent;
    if (++n_recent_ < n_recent_max) return;
    for (State & s : states_) s = s == recent ? earlier : s == earlier ? absent : s;
    n_recent_ = 0;
    has_changed_ = true;
}

const kernels::ChosenGroups * DraftVocabulary::chosen() {
    if (has_changed_) {
        chosen_.groups.clear();
        for (size_t g = 0; g < states_.size(); ++g) {
            if (states_[g] != absent) chosen_.groups.push_back((int32_t)g);
        }
        has_changed_ = false;
    }
    return states_.empty() ? nullptr : &chosen_;
}

}  // namespace eaglecpp
