// SPDX-License-Identifier: MIT
// The part of Rounds that cuts prompts into slices while several conversations run. It decides which prompts share a
// batch with rounds, and which prompts wait for rows that another conversation is about to compute. With Exactness::on,
// sharing never changes a bit of the results.
#include "engine/rounds.h"

#include <algorithm>

namespace eaglecpp {

static constexpr int n_shared_least = 8;  // minimum number of prompt rows for which sharing a batch is faster

// Returns true if this prompt can be cut anywhere and share its batches without changing a bit of its rows. Also
// returns true if exactness is off.
bool Rounds::cuts_freely(const Sequence & s, int n_rows) const {
    if (s.exactness == Exactness::off) return true;
    // Without a drafter, exact row counts are not measured: the text without a drafter is itself the reference for
    // drafted texts.
    return target_.rounds_alike() && (!(models_.can_draft() || s.forces) || exact_rows_.allows_all(n_rows));
}

bool Rounds::can_share(const std::vector<Sequence *> & reading, const std::vector<Sequence *> & decoding) const {
    if (reading.empty() || !target_.shares_batches()) return false;
    const int n_rows = (int)decoding.size() + n_shared_least;
    const auto cuts = [&](const Sequence * s) { return cuts_freely(*s, n_rows); };
    return n_rows <= target_.options().n_ubatch && std::all_of(reading.begin(), reading.end(), cuts) &&
           std::all_of(decoding.begin(), decoding.end(), cuts);
}

std::vector<Sequence *> Rounds::cut(const std::vector<Sequence *> & reading, int n_rows) const {
    int n_left = std::min(target_.options().n_ubatch - n_rows, target_.n_shared_rows());
    std::vector<Sequence *> slices;
    for (Sequence * s : reading) {
        // Rows of an image share no batch with tokens. They wait until their prompt is the first of `reading`, and then
        // get a separate batch.
        if (s->image() && s == reading.front()) return {};
        if (s->image()) continue;
        int & n = s->plan.round.n_prompt_rows;
        n = std::min(n_left, s->n_rows_alike());
        while (n > 0 && !cuts_freely(*s, n_rows + n)) --n;
        if (n <= 0) continue;
        slices.push_back(s);
        n_left -= n;
    }
    return slices;
}

bool Rounds::can_adopt(const Sequence & s) const {
    return s.params.cache_prompt && target_.shares_batches() && cuts_freely(s, 1 + n_shared_least);
}

bool Rounds::waits_for(const Sequence & s, const std::vector<Sequence *> & reading) const {
    return can_adopt(s) && std::any_of(reading.begin(), reading.end(), [&](const Sequence * other) {
               const int n = n_common(s.tokens, other->tokens, std::min(s.n_prompt - 1, other->prompt_end()));
               return n >= std::max(s.n_past, other->n_past) + n_adopt_least;
           });
}

}  // namespace eaglecpp
