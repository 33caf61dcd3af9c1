// SPDX-License-Identifier: MIT
#include "engine/conversations.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace eaglecpp {

// Maximum rows of a conversation that is swapped out to lend its cells, because copying more rows would delay a
// request.
static constexpr int n_lent_max = 2048;
// n_checkpoints_max: maximum number of checkpoints per conversation. n_checkpoint_rows: number of prompt rows from
// which a checkpoint is set. n_tail: number of rows between a recurrent state's last checkpoint and the end of the
// prompt.
static constexpr int n_checkpoints_max = SavedSequence::n_ends_max, n_checkpoint_rows = 256, n_tail = 8;

Conversations::Conversations(Models & models)
    : target_(*models.target), drafter_(models.drafter.get()), traits_(models.draft_traits) {}

Sequence & Conversations::open() {
    const int n_max = target_.options().n_sequences;
    for (int id = 0; id < n_max; ++id) {
        if (open_.count(id)) continue;
        Sequence s;
        s.id = id;
        s.range = target_.cells().seqs(id);
        if (drafter_) {
            s.draft = drafter_->open(id);
            s.hidden_states = PendingStates(traits_.n_aux, traits_.n_embd_target);
        }
        return open_.emplace(id, std::move(s)).first->second;
    }
    fail(ErrorKind::value, "all %d conversations are open; close a conversation or raise n_sequences", n_max);
}

bool Conversations::does_any_generate() const {
    return std::any_of(open_.begin(), open_.end(), [](const auto & one) { return one.second.is_active; });
}

Sequence & Conversations::get(int id) {
    const auto it = open_.find(id);
    if (it == open_.end()) fail(ErrorKind::value, "sequence %d is not open", id);
    return it->second;
}

void Conversations::reuse(Sequence & s, const Tokens & prompt) {
    int n_keep = n_common(s.tokens, prompt, std::min(s.n_past, (int)prompt.size() - 1));
    // After an error the drafter may lack rows. The target then runs the positions of these rows again, possibly with
    // another kernel.
    const int n_drafted = s.draft ? s.draft->n_rows() + s.n_pending() : n_keep;
    const bool is_lacking = n_drafted < n_keep;
    keep(s, s.before_whole(prompt, std::min(n_keep, n_drafted)));
    if (is_lacking) s.mark_inexact(s.n_past);
}

void Conversations::cut(Sequence & s, int n) {
    const Token last = s.tokens[n - 1];
    keep(s, n - 1);
    if (s.n_past == n - 1) s.tokens.push_back(last);
}

// Keeps the first n rows, or the rows up to the last checkpoint if the target cannot roll back to n. The drafter's last
// row may embed another token than the new text has. One outdated row among many hardly affects the drafts.
void Conversations::keep(Sequence & s, int n) {
    const int n_there = s.n_past - s.n_replay;
    Cells & cells = target_.cells();
    while (!s.checkpoints.empty() && s.checkpoints.back().n > n) s.checkpoints.pop_back();
    if (n < s.n_past && !cells.truncate(s.range, n)) {
        n = s.last_checkpoint();
        if (n == 0 || !cells.load_end(s.range, n, s.checkpoints.back().bytes)) return forget(s);
    }
    s.n_past = n;
    s.n_replay = std::max(0, n - n_there);
    s.tokens.resize(n);
    s.hidden_states.truncate(n);
    if (s.draft) s.draft->truncate(s.hidden_states.n_reusable(n));
    if (s.inexact_from >= n) s.inexact_from = Sequence::none_inexact;
}

// Cells of windows stay in the cache until they are saved. A recurrent state must be copied when the text ends at the
// checkpoint, so prefill() stops at this position.
int Conversations::last_checkpoint(const Sequence & s) const {
    const bool has_state = target_.cells().has_state();
    const int n = s.n_prompt - (has_state ? n_tail : 1), n_least = has_state ? n_checkpoint_rows : n_tail;
    if (target_.cells().ends_anywhere() || n <= s.last_checkpoint()) return 0;
    return n >= std::min(s.last_checkpoint(), s.stats.n_reused) + n_least ? n : 0;
}

void Conversations::set_checkpoint(Sequence & s) {
    const Cells & cells = target_.cells();
    const int n_last = last_checkpoint(s), n = std::min(s.n_past, n_last);
    const int n_before = s.last_checkpoint();
    if (n == 0 || (cells.has_state() && cells.n_rows(s.range) != n)) return;
    if (n < n_last && n < n_before + std::max({n_before, 2 * n_checkpoint_rows, 4 * cells.n_window()})) return;
    s.checkpoints.push_back({n, {}});
    if (cells.has_state()) cells.save_end(s.range, n, s.checkpoints.back().bytes);
    if ((int)s.checkpoints.size() <= n_checkpoints_max) return;
    int least = 0;
    const auto gap = [&](int i) { return s.checkpoints[i + 1].n - (i > 0 ? s.checkpoints[i - 1].n : 0); };
    for (int i = 1; i < n_checkpoints_max - 1; ++i) least = gap(i) < gap(least) ? i : least;
    s.checkpoints.erase(s.checkpoints.begin() + least);
}

void Conversations::adopt(Sequence & s) {
    const Sequence * best = nullptr;
    int n_best = s.n_past + n_adopt_least - 1;
    for (const auto & [id, other] : open_) {
        int n_max = std::min(other.n_past, s.n_prompt - 1);
        if (s.draft) n_max = std::min(n_max, other.draft->n_rows() + other.n_pending());
        if (s.exactness != Exactness::off) n_max = std::min(n_max, other.inexact_from);
        const int n = s.before_whole(s.tokens, n_common(other.tokens, s.tokens, n_max));
        if (&other != &s && n > n_best && target_.cells().can_end_at(other.range, n)) best = &other, n_best = n;
    }
    if (!best) return;
    const int n = n_best;
    // Removes existing rows first. Otherwise the cache would store them out of order, before the copied rows.
    target_.cells().truncate(s.range, 0);
    s.n_past = 0;  // stays 0 until all following calls succeed
    s.checkpoints.clear();
    target_.cells().copy_prefix(best->range, s.range, n);
    s.inexact_from = best->inexact_from < n ? best->inexact_from : Sequence::none_inexact;
    if (s.draft) adopt_draft(s, *best, n);
    s.n_past = n;
    s.stats.n_reused = n;
    s.stats.n_prompt = s.n_prompt - n;
}

void Conversations::adopt_draft(Sequence & s, const Sequence & source, int n) {
    const int n_rows = std::min(s.hidden_states.n_reusable(n), source.draft->n_rows());
    std::vector<uint8_t> rows;
    source.draft->save_rows(n_rows, rows);
    s.draft->load_rows({rows.data(), rows.size()}, n_rows);
    s.hidden_states = source.hidden_states;
    s.hidden_states.truncate(n);
}

void Conversations::forget(Sequence & s) {
    s.is_active = false;
    s.n_past = s.n_replay = 0;
    s.checkpoints.clear();
    s.tokens.clear();
    s.hidden_states.truncate(0);
    s.text.clear();
    s.inexact_from = Sequence::none_inexact;
    if (s.draft) s.draft->truncate(0);
    target_.cells().truncate(s.range, 0);
}

void Conversations::roll_back(Sequence & s, size_t n_tokens) {
    // The sampler may be ahead of the text, so the generation ends. The conversation stays open.
    s.is_active = false;
    // If rows of a batch fail, llama.cpp drops all rows that have their positions.
    s.n_past = s.before_whole(s.tokens, s.n_past);
    if (s.inexact_from > s.n_past) s.inexact_from = Sequence::none_inexact;
    // If a recurrent state cannot be rolled back, the next prompt is run in full.
    if (!target_.cells().truncate(s.range, s.n_past)) return forget(s);
    if (target_.copies_states() && target_.cells().n_rows(s.range) != s.n_past - s.n_replay) return forget(s);
    s.hidden_states.truncate(s.n_past);
    if (s.draft) s.draft->truncate(s.n_past);
    // Cuts tokens that are not returned. In a round with several conversations, this conversation's part may have
    // succeeded.
    if (s.tokens.size() > n_tokens) cut(s, (int)n_tokens);
}

SavedSequence Conversations::save(const Sequence & s) const {
    SavedSequence::Header h;
    const Cells & cells = target_.cells();
    h.n_tokens = (int)s.tokens.size();
    h.n_past = s.n_past, h.n_replay = s.n_replay;
    h.inexact_from = s.inexact_from;
    h.ends_anywhere = cells.ends_anywhere();
    h.n_images = (int)cells.images(s.range).size();
    SavedSequence out;
    const auto append = [&](const auto & values) {
        const auto * data = (const uint8_t *)values.data();
        out.bytes.insert(out.bytes.end(), data, data + values.size() * sizeof(values[0]));
    };
    append(s.tokens);
    append(cells.images(s.range));
    if (s.draft) {
        h.n_draft_rows = s.draft->n_rows();
        const PendingStates & states = s.hidden_states;
        h.n_aux = (int)states.layers().size();
        h.n_embd = states.n_embd(), h.first = states.first(), h.n_rows = states.n_rows();
        for (const auto & l : states.layers()) append(l);
        const size_t n_before = out.bytes.size();
        s.draft->save_rows(h.n_draft_rows, out.bytes);
        h.n_draft = out.bytes.size() - n_before;
    }
    for (const Checkpoint & c : s.checkpoints) {
        const size_t n_before = out.bytes.size();
        append(c.bytes);
        if (c.bytes.empty()) cells.save_end(s.range, c.n, out.bytes);
        if (out.bytes.size() > n_before) h.ends[h.n_ends++] = {(uint64_t)c.n, out.bytes.size() - n_before};
    }
    h.n_target = cells.save_rows(s.range, out.bytes);
    std::memcpy(out.bytes.data(), &h, sizeof(h));
    return out;
}

bool Conversations::restore(Sequence & s, const SavedSequence & saved) {
    const SavedSequence::Header h = saved.header();
    forget(s);
    target_.cells().set_images(s.range, saved.images());
    const int n_rows = h.n_past - h.n_replay;
    if (!target_.cells().load_rows(s.range, saved.target(), n_rows) || target_.cells().n_rows(s.range) != n_rows) {
        forget(s);
        return false;
    }
    if (s.draft) {
        s.draft->load_rows(saved.draft(), h.n_draft_rows);
        s.hidden_states.assign(h.first, h.n_rows, saved.hidden_states());
    }
    s.tokens = saved.tokens();
    s.n_past = h.n_past, s.n_replay = h.n_replay;
    for (int i = 0; i < h.n_ends; ++i) {
        const ByteView end = saved.end(i);
        s.checkpoints.push_back({(int)h.ends[i].n, {end.data, end.data + end.size}});
    }
    s.inexact_from = h.inexact_from;
    return true;
}

void Conversations::lend(const std::function<void(const SeqRange &)> & use) {
    Sequence * shortest = nullptr;
    for (int id = 0; id < target_.options().n_sequences; ++id) {
        if (!open_.count(id)) return use(target_.cells().seqs(id));
        Sequence & s = open_.at(id);
        if (!shortest || s.n_past < shortest->n_past) shortest = &s;
    }
    if (shortest->n_past == 0) return use(shortest->range);
    if (!target_.can_save_rows() || shortest->n_past > n_lent_max) return;
    const SavedSequence saved = save(*shortest);
    forget(*shortest);
    use(shortest->range);
    restore(*shortest, saved);
}

void Conversations::note_order() {
    if (target_.cells().n_order_lost() == n_order_lost_) return;
    n_order_lost_ = target_.cells().n_order_lost();
    for (auto & [id, s] : open_) s.mark_inexact(0);
}

}  // namespace eaglecpp
