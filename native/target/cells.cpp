// SPDX-License-Identifier: MIT
#include "target/cells.h"

#include <algorithm>
#include <climits>
#include <numeric>

#include "base/error.h"

namespace eaglecpp {

// Number of cells that stay available for reserving rejected nodes when all other cells are in use. Without them, the
// gaps would have to be closed every few rounds, and closing gaps copies the whole cache, block by block.
static constexpr int n_reserved_max = 128;
// Number of positions that are moved together when gaps are closed: 32 MiB of an 8B target's cache in F16.
static constexpr Pos n_moved_at_once = 256;
// Maximum number of reserved cells, unless more cells than this are in use. Attention scans reserved cells without a
// result.
static constexpr int n_gaps_min = 1024;

void Cells::prepare(const llama_batch & rows) {
    if (reserves_rejected() && rows.n_tokens > n_unused() - n_reserved()) close_gaps();
    // Attention scans the reserved cells for every row, so there must not be too many of them.
    const int n_used = (int)llama_n_ctx(ctx_) - n_unused();
    if (rules_.n_conversations > 1 && n_reserved() > std::max(n_gaps_min, n_used)) close_gaps();
    n_run_.assign(rules_.n_conversations, 0);
    for (int i = 0; i < rows.n_tokens; ++i) ++n_run_[of(rows.seq_id[i][0])];
    is_shared_ = n_run_[of(rows.seq_id[0][0])] < rows.n_tokens;
    // If there are more conversations than ids for reserving cells, rejected nodes change the order of the cells.
    if (is_shared_ && rules_.adds_in_order && rules_.is_shared && !reserves_rejected()) ++n_order_lost_;
}

bool Cells::close_gaps_before(const SeqRange & range) {
    // Cells of other conversations also shift the tiles, by a number that depends on drafts.
    if (!are_others_empty(range)) return false;
    return n_reserved() == 0 || close_gaps();  // another conversation may have left reserved cells
}

// llama.cpp has no call that moves cells. But it can write rows into a buffer, and reading them back puts them into the
// lowest free cells. This function moves one block of positions after the other. It starts with the lowest cells, so
// that each block finds free cells below its old cells. Rows that do not move get several ids during the moves.
// Otherwise llama.cpp would reuse their cells: it reuses cells that have only one id and that a sliding window has
// passed.
bool Cells::close_gaps() {
    free_reserved();
    for (int i = 0; i < rules_.n_conversations; ++i) {
        const SeqRange range = seqs(i);
        copy(range.first, range.reserved, -1, -1);
        for (int id = 2; id < range.count; ++id) drop(range.first + id, -1, -1);
    }
    bool ok = true;
    try {
        for (int i = 0; i < rules_.n_conversations; ++i) move_down(i);
    } catch (const std::bad_alloc &) {
        ++n_order_lost_;
        ok = false;
    }
    for (int i = 0; i < rules_.n_conversations; ++i) {
        const SeqRange range = seqs(i);
        for (int id = 0; id < range.count; ++id) copy(range.reserved, range.first + id, -1, -1);
        drop(range.reserved, -1, -1);
    }
    return ok;
}

// Moves a conversation's rows down. The block that moves has the conversation's first id.
void Cells::move_down(int conversation) {
    const SeqRange own = seqs(conversation);
    const auto for_each_id = [](const SeqRange & range, const auto & call) {
        call(range.first);
        if (range.count > 1) call(range.first + 1);
        call(range.reserved);
    };
    // llama.cpp only writes rows within the window of the last row of an id.
    const int n_window = llama_model_n_swa(llama_get_model(ctx_));
    const Pos n_block = n_window > 0 ? std::min(n_window, n_moved_at_once) : n_moved_at_once;
    const Pos end = last(own.reserved) + 1;
    drop(own.first, -1, -1);
    std::vector<uint8_t> rows;
    for (Pos from = 0, to; from < end; from = to) {
        to = std::min(end, (from / n_block + 1) * n_block);
        std::vector<SeqRange> owners = {own};
        bool is_moved = false;
        for (int other = 0; other < rules_.n_conversations; ++other) {
            const Pos end_common = pos(own, n_common_[conversation][other]);
            if (end_common <= from) continue;
            to = std::min(to, end_common);
            owners.push_back(seqs(other));
            is_moved = is_moved || other < conversation;
        }
        if (is_moved) continue;
        copy(own.reserved, own.first, from, to);
        rows.resize(llama_state_seq_get_size(ctx_, own.first));
        rows.resize(llama_state_seq_get_data(ctx_, rows.data(), rows.size(), own.first));
        if (rows.empty()) throw std::bad_alloc();
        for (const SeqRange & range : owners) {
            for_each_id(range, [&](llama_seq_id id) { drop(id, from, to); });
        }
        fail_if(llama_state_seq_set_data(ctx_, rows.data(), rows.size(), own.first) != rows.size(), ErrorKind::broken,
                "llama.cpp could not restore %zu bytes of its cache; open the engine again", rows.size());
        for (const SeqRange & range : owners) {
            for_each_id(range, [&](llama_seq_id id) { copy(own.first, id, from, to); });
        }
        drop(own.first, -1, -1);
    }
    copy(own.reserved, own.first, -1, -1);
}

SeqRange Cells::seqs(int conversation) const {
    const llama_seq_id first = conversation * n_ids();
    const llama_seq_id extra = first + rules_.n_leaves_max;
    return {first, rules_.n_leaves_max, reserves_rejected() ? extra : -1, rules_.copies_states ? extra : -1};
}

Pos Cells::pos(const SeqRange & range, int n) const {
    Pos out = n;
    for (const ImageRows & image : images(range)) {
        if (n >= image.first + image.n_rows) {
            out -= image.n_rows - image.n_pos;
        } else if (n > image.first) {
            out -= n - image.first;
        }
    }
    return out;
}

bool Cells::truncate(const SeqRange & range, int n) {
    if (!can_end_at(range, n)) return false;
    const Pos end = pos(range, n);
    std::vector<int> & common = n_common_[of(range.first)];
    for (size_t i = 0; i < common.size(); ++i) common[i] = n_common_[i][of(range.first)] = std::min(common[i], n);
    const int n_back = n_rows(range) - n;
    // Reserved cells stay reserved, even for later positions: a reserved cell may come before a kept cell, and later
    // rows would fill it. For the same reason, the newly freed cells are reserved if there are other conversations.
    if (range.reserved >= 0 && are_others_empty(range)) {
        if (n == 0) free_reserved();
    } else if (range.reserved >= 0) {
        reserve_from(range, n);
    }
    if (range.copy >= 0 && n_back > 0) {
        if (has_copy_at(range, n)) {
            go_back(range);
            return true;
        }
        drop(range.copy, -1, -1);
    }
    bool ok = true;
    for (int i = 0; i < range.count; ++i) ok = ok && drop(range.first + i, end, -1);
    return ok;
}

bool Cells::has_copy_at(const SeqRange & range, int n) const {
    return range.copy >= 0 && last(range.copy) + 1 == pos(range, n);
}

bool Cells::can_end_at(const SeqRange & range, int n) const {
    const int n_back = n_rows(range) - n;
    if (n == 0 || n_back <= 0 || has_copy_at(range, n)) return true;
    // llama.cpp has a state for each row of the last batch. For an earlier row, it would restore a wrong state.
    if (rules_.has_state) return n_back < n_run_[of(range.first)];
    const Pos first = llama_memory_seq_pos_min(llama_get_memory(ctx_), range.first);
    return rules_.n_window == 0 || first <= std::max(0, pos(range, n) - rules_.n_window + 1);
}

void Cells::save_end(const SeqRange & range, int n, std::vector<uint8_t> & out) const {
    if (n == n_rows(range)) return save(range.first, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, out);
    if (!borrows() || !can_end_at(range, n)) return;
    const llama_seq_id borrowed = n_seqs() - 1;
    drop(borrowed, -1, -1);  // an earlier save may have failed for lack of memory
    copy(range.first, borrowed, 0, pos(range, n));
    save(borrowed, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, out);
    drop(borrowed, -1, -1);
}

bool Cells::load_end(const SeqRange & range, int n, const std::vector<uint8_t> & bytes) {
    if (range.reserved >= 0 && !are_others_empty(range)) reserve_from(range, 0);
    if (range.copy >= 0) drop(range.copy, -1, -1);
    n_run_[of(range.first)] = 0;
    // Frees the old cells before loading. If the old cells were freed afterwards, later rows would fill them, before
    // the loaded rows.
    for (int i = 1; i < range.count; ++i) drop(range.first + i, -1, -1);
    const size_t n_taken =
        llama_state_seq_set_data_ext(ctx_, bytes.data(), bytes.size(), range.first, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (n_taken != bytes.size() || n_rows(range) != n) return false;
    const bool ok = drop(range.first, pos(range, n), -1);
    for (int i = 1; i < range.count; ++i) copy(range.first, range.first + i, -1, -1);
    return ok;
}

void Cells::copy_prefix(const SeqRange & source, const SeqRange & range, int n) {
    for (int i = 0; i < range.count; ++i) copy(source.first, range.first + i, 0, pos(range, n));
    std::vector<int> & common = n_common_[of(range.first)];
    for (size_t i = 0; i < common.size(); ++i) {
        const int n_both = i == (size_t)of(source.first) ? n : std::min(n, n_common_[of(source.first)][i]);
        common[i] = n_common_[i][of(range.first)] = n_both;
    }
}

size_t Cells::save_rows(const SeqRange & range, std::vector<uint8_t> & out) const {
    const size_t first = out.size();
    save(range.first, LLAMA_STATE_SEQ_FLAGS_NONE, out);
    return out.size() - first;
}

void Cells::save(llama_seq_id id, llama_state_seq_flags flags, std::vector<uint8_t> & out) const {
    const size_t first = out.size();
    out.resize(first + llama_state_seq_get_size_ext(ctx_, id, flags));
    out.resize(first + llama_state_seq_get_data_ext(ctx_, out.data() + first, out.size() - first, id, flags));
}

// llama.cpp fills free cells in order, so loaded rows keep the order in which they were saved.
bool Cells::load_rows(const SeqRange & range, ByteView bytes, int n_rows) {
    truncate(range, 0);
    n_run_[of(range.first)] = 0;
    if (reserves_rejected() && n_rows > n_unused() - n_reserved() && !close_gaps()) return false;
    const bool is_taken = llama_state_seq_set_data(ctx_, bytes.data, bytes.size, range.first) == bytes.size;
    // Bytes from a file may contain a shorter text.
    if (!is_taken || this->n_rows(range) < n_rows || llama_state_seq_get_size(ctx_, range.first) != bytes.size) {
        truncate(range, 0);
        return false;
    }
    for (int i = 1; i < range.count; ++i) copy(range.first, range.first + i, 0, pos(range, n_rows));
    return true;
}

int Cells::n_rows(llama_seq_id id) const {
    int n = last(id) + 1;
    for (const ImageRows & image : images_[of(id)]) {
        if (n > image.first) n = std::max(n + image.n_rows - image.n_pos, image.first + image.n_rows);
    }
    return n;
}

void Cells::remember(const SeqRange & range) {
    if (range.copy < 0) return;
    drop(range.copy, -1, -1);
    copy(range.first, range.copy, -1, -1);
}

void Cells::go_back(const SeqRange & range) {
    drop(range.first, -1, -1);
    copy(range.copy, range.first, -1, -1);
}

bool Cells::keep_path(const SeqRange & range, const DraftTree & tree, int node, int n_past) {
    const bool is_whole = tree.depth.back() == tree.depth[node] && tree.is_chain();
    if (range.copy >= 0) {
        if (!is_whole) go_back(range);
        return is_whole;
    }
    const Pos pos = this->pos(range, n_past), end = pos + tree.depth[node] + 1;
    const std::vector<int32_t> leaves = tree.leaves();
    if (range.reserved >= 0) reserve_rejected(range, tree, tree.path(node), pos);
    // An id whose path contains the node keeps its path; all other ids copy the node's path.
    std::vector<llama_seq_id> keeps, others;
    for (int i = 0; i < range.count; ++i) {
        const std::vector<int32_t> own = tree.path(leaves[SeqRange::leaf_of(i, leaves.size())]);
        const bool is_on = std::find(own.begin(), own.end(), node) != own.end();
        (is_on ? keeps : others).push_back(range.first + i);
    }
    const bool is_padded = last(range.first) >= end;
    for (const llama_seq_id id : keeps) {
        if (!is_whole || is_padded) drop(id, end, -1);
    }
    for (const llama_seq_id id : others) {
        drop(id, pos, -1);
        copy(keeps[0], id, pos, end);
    }
    return true;
}

// A single conversation that drafts only chains needs no reserved cells: its rejected rows come after the kept rows.
bool Cells::reserves_rejected() const {
    if (!rules_.adds_in_order || !rules_.is_shared) return false;
    const size_t n_ids = (size_t)rules_.n_conversations * (rules_.n_leaves_max + 1);
    return rules_.n_leaves_max > 1 || (rules_.n_conversations > 1 && n_ids <= llama_max_parallel_sequences());
}

// With separate caches, another id cannot share cells.
bool Cells::borrows() const {
    const size_t n_ids = (size_t)rules_.n_conversations * this->n_ids();
    return rules_.n_window > 0 && rules_.is_shared && n_ids < llama_max_parallel_sequences();
}

bool Cells::are_others_empty(const SeqRange & range) const {
    for (int i = 0; i < rules_.n_conversations; ++i) {
        const llama_seq_id other = seqs(i).first;
        if (other != range.first && last(other) >= 0) return false;
    }
    return true;
}

// Reserves the cells of rows from index n on, which are about to be removed.
void Cells::reserve_from(const SeqRange & range, int n) {
    int end = n;
    for (int i = 0; i < range.count; ++i) {
        end = std::max(end, n_rows(range.first + i));
        copy(range.first + i, range.reserved, pos(range, n), -1);
    }
    n_reserved_[of(range.first)] += end - n;
}

// Reserves cells that rejected nodes leave before cells of accepted nodes. Attention adds in the order of the cells. If
// a later row filled such a cell, attention would round differently than without the tree. The cells stay reserved
// until the cache is full; then its gaps are closed. If other conversations have later rows in the batch, every
// rejected node leaves such a cell.
void Cells::reserve_rejected(const SeqRange & range, const DraftTree & tree, const std::vector<int32_t> & accepted,
                             Pos pos) {
    const std::vector<int32_t> leaves = tree.leaves();
    const bool has_room = n_unused() >= n_unused_min();
    std::vector<uint8_t> is_done(tree.size(), 0);
    for (int32_t node : accepted) is_done[node] = 1;
    for (size_t i = 0; i < leaves.size(); ++i) {
        int from = INT_MAX, to = 0;  // range of depths; the reserved part of a path is contiguous
        for (int32_t node = leaves[i]; !is_done[node]; node = tree.parent[node]) {
            is_done[node] = 1;
            if (node > accepted.back() && !is_shared_) continue;
            from = std::min(from, (int)tree.depth[node]);
            to = std::max(to, tree.depth[node] + 1);
        }
        if (from >= to) continue;
        if (!has_room) {
            ++n_order_lost_;
            return;
        }
        copy(range.first + (llama_seq_id)i, range.reserved, pos + from, pos + to);
        n_reserved_[of(range.first)] += to - from;
    }
}

int Cells::n_reserved() const {
    return std::accumulate(n_reserved_.begin(), n_reserved_.end(), 0);
}

void Cells::free_reserved() {
    for (int i = 0; i < rules_.n_conversations; ++i) drop(seqs(i).reserved, -1, -1);
    n_reserved_.assign(rules_.n_conversations, 0);
}

bool Cells::has_room_for_trees() const {
    return n_unused() >= n_unused_min() + rules_.n_conversations * (rules_.n_draft_max + 1);
}

// Number of cells without a token of any conversation. A common prefix is stored once.
int Cells::n_unused() const {
    int n = (int)llama_n_ctx(ctx_);
    for (int i = 0; i < rules_.n_conversations; ++i) {
        const std::vector<int> & common = n_common_[i];
        n -= n_rows(seqs(i)) - *std::max_element(common.begin(), common.begin() + i + 1);
    }
    return n;
}

int Cells::n_unused_min() const {
    return std::min(n_reserved_max, rules_.n_ctx / 8);
}

void Cells::clear() {
    n_reserved_.assign(rules_.n_conversations, 0);
    n_common_.assign(rules_.n_conversations, std::vector<int>(rules_.n_conversations, 0));
    llama_memory_clear(llama_get_memory(ctx_), false);
}

}  // namespace eaglecpp
