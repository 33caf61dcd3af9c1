// SPDX-License-Identifier: MIT
#include "draft/hidden_state_sequence.h"

#include <algorithm>

#include "base/error.h"
#include "base/process.h"

namespace eaglecpp {

// Number of cache sizes between a length and twice this length, for drafters whose graphs have few different sizes.
static constexpr int n_kv_steps = 4;

// Casts the sequence to a HiddenStateSequence. All conversations of a call belong to the same drafter.
static HiddenStateSequence * own(DraftSequence * seq) {
    return static_cast<HiddenStateSequence *>(seq);
}

HiddenStateSequence::HiddenStateSequence(HiddenStateDrafter & drafter)
    : drafter_(drafter), kv_(drafter.take_kv()), outputs_(drafter) {}

HiddenStateSequence::~HiddenStateSequence() {
    if (kv_) drafter_.give_kv(std::move(kv_));
}

// Returns the padded number of rows: one of `sizes`, or the last of `sizes` times a power of two. Devices prepare a new
// graph for each size, and additional rows cost them little.
int HiddenStateSequence::n_padded(int n_rows, std::initializer_list<int> sizes) const {
    if (!drafter_.is_remote()) return n_rows;
    const auto found = std::lower_bound(sizes.begin(), sizes.end(), n_rows);
    int n = found == sizes.end() ? *(found - 1) : *found;
    while (n < n_rows) n *= 2;
    return n;
}

int HiddenStateSequence::n_slots_read(int n_used) const {
    return std::min(DraftKv::pad(n_used, drafter_.is_remote() ? n_kv_steps : 0), kv_->n_slots());
}

void HiddenStateSequence::commit(const HiddenStates & hidden_states, const Token * tokens) {
    check_room(hidden_states.n_rows);
    truncate(kv_->n_rows);
    const int n_before = kv_->n_rows;
    try {
        for (int at = 0; at < hidden_states.n_rows; at += HiddenStateDrafter::n_commit_chunk) {
            HiddenStates part = hidden_states.from(at, drafter_.spec().n_embd_target);
            part.n_rows = std::min(part.n_rows, HiddenStateDrafter::n_commit_chunk);
            run({commit_call(part, tokens + at, /*n_out=*/0)});
        }
    } catch (...) {
        kv_->n_rows = n_before;  // the caller still has the hidden states of all rows, and can commit these rows again
        throw;
    }
}

void HiddenStateSequence::check_room(int n_rows) const {
    if (kv_->n_rows + n_rows <= kv_->n_ctx()) return;
    fail(ErrorKind::context_full, "the drafter's cache has room for %d rows, but the text needs %d; raise n_ctx",
         kv_->n_ctx(), kv_->n_rows + n_rows);
}

void HiddenStateDrafter::run_commits(const std::vector<DraftRequest> & commits) {
    std::vector<DraftCall> calls, blocks;
    for (const DraftRequest & c : commits) calls.push_back(own(c.seq)->commit_call(c, blocks));
    const int n_steps = commits.size() == 1 ? commits[0].n_steps : 0;
    if (n_steps > 0) {
        calls[0].part.n_kv = own(calls[0].seq)->n_slots_read(calls[0].first_slot + calls[0].n() + n_steps);
    }
    HiddenStateSequence::run(calls, blocks, n_steps);
}

DraftCall HiddenStateSequence::commit_call(const DraftRequest & commit, std::vector<DraftCall> & blocks) {
    const DraftSpec & s = drafter_.spec();
    const int n = commit.hidden_states.n_rows, n_out = 1 + commit.n_ahead;
    const int n_max = s.is_block() ? s.block.n_slots() - 1 : s.is_parallel() ? kv_->n_draft_rows_max() : 0;
    fail_if(commit.n_ahead < 0 || commit.n_ahead > n_max, ErrorKind::value,
            "expected 0 to %d masked rows after a commit, found %d", n_max, commit.n_ahead);
    check_room(n);
    truncate(kv_->n_rows);
    if (!s.is_block()) return commit_call(commit.hidden_states, commit.tokens, n_out);
    // A device always computes the whole block, so that its graphs have few sizes.
    blocks.push_back(block_call(n, commit.tokens + n - 1, drafter_.is_remote() ? n_max + 1 : n_out));
    return commit_call(commit.hidden_states, commit.tokens, 0);
}

// Returns the call for the block after n_before additional rows. If all layers are causal, the block ends at the last
// requested position.
DraftCall HiddenStateSequence::block_call(int n_before, const Token * anchor, int n_out) {
    const BlockSpec & b = drafter_.spec().block;
    const bool is_causal = std::find(b.causal.begin(), b.causal.end(), 0) == b.causal.end();
    const int n = is_causal ? n_out + (b.anchor_first ? 0 : 1) : b.n_rows;
    DraftCall call{};
    call.seq = this;
    call.tokens = anchor;
    call.is_block = true;
    call.first_slot = kv_->n_rows + n_before;
    for (int i = 0; i < n; ++i) call.pos.push_back(call.first_slot + i);
    call.n_out = n_out;
    call.part = {kv_.get(), n, n_out, n_slots_read(call.first_slot + n)};
    return call;
}

DraftCall HiddenStateSequence::commit_call(const HiddenStates & hidden_states, const Token * tokens, int n_out) {
    DraftCall call{};
    call.n_out = n_out;
    call.n_ahead = std::max(0, n_out - 1);
    const int n = hidden_states.n_rows + call.n_ahead;
    call.seq = this;
    call.tokens = tokens;
    call.hidden_states = hidden_states;
    for (int i = 0; i < n; ++i) call.pos.push_back(kv_->n_rows + i);
    call.first_slot = kv_->n_rows;
    call.is_commit = true;
    // A single layer that only writes K/V does not read the cache, so one graph shape serves all context lengths.
    const bool reads_kv = !drafter_.spec().is_block() && (n_out > 0 || drafter_.spec().n_layer > 1);
    const bool is_prompt = n_out == 0 && !drafter_.spec().is_block();
    // Most rounds commit up to three rows. Uploading unused hidden states takes less time than preparing a graph for
    // each number of rows.
    const int n_all = is_prompt ? n_padded(n, {8, 64}) : n_padded(n, {3, 8});
    call.part = {kv_.get(), n_all, call.n_out, reads_kv ? n_slots_read(kv_->n_rows + n) : 0};
    return call;
}

void HiddenStateDrafter::extend_together(const std::vector<DraftRequest> & steps) {
    std::vector<std::vector<Token>> tokens(steps.size());
    std::vector<DraftCall> calls;
    try {
        for (size_t i = 0; i < steps.size(); ++i) {
            calls.push_back(own(steps[i].seq)->extend_call(steps[i].rows, tokens[i]));
        }
        if (calls.empty()) return;
        if (selects()) {
            for (const DraftCall & call : calls) own(call.seq)->outputs_.select(call.feeds, call.tokens);
        } else {
            HiddenStateSequence::run(calls);
        }
    } catch (...) {
        for (const DraftCall & call : calls) own(call.seq)->drop_drafts(own(call.seq)->n_draft_rows() - call.n());
        throw;
    }
}

DraftCall HiddenStateSequence::extend_call(const std::vector<DraftRow> & rows, std::vector<Token> & tokens) {
    const int n = (int)rows.size();
    const int first = n_draft_rows();
    const DraftSpec & s = drafter_.spec();
    fail_if(drafter_.traits().is_parallel, ErrorKind::value,
            "a parallel drafter gives all draft tokens in the commit, so it cannot run draft rows");
    fail_if(first + n > kv_->n_draft_rows_max(), ErrorKind::value,
            "expected up to %d draft rows in one round, found %d", kv_->n_draft_rows_max(), first + n);
    DraftCall call{};
    call.seq = this;
    std::vector<int32_t> parents;
    for (const DraftRow & row : rows) {
        const int parent = row_of(row.parent);
        parents.push_back(parent);
        tokens.push_back(row.token);
        call.pos.push_back(parent < 0 ? kv_->n_rows : drafts_.positions[parent] + 1);
        // In a block, the draft position is the position after the row's own position.
        const int slot = call.pos.back() - kv_->n_rows + 1;
        fail_if(s.is_block() && slot >= outputs_.n_slots(), ErrorKind::value,
                "the last commit gave %d draft tokens, but this draft row needs one more", outputs_.n_slots());
        call.feeds.push_back(s.is_block() ? slot : 1 + parent);
    }
    for (int i = 0; i < n; ++i) {
        nodes_.push_back(rows[i].node);
        drafts_.parents.push_back(parents[i]);
        drafts_.positions.push_back(call.pos[i]);
    }
    call.tokens = tokens.data();
    call.drafts = &drafts_;
    call.first_slot = kv_->n_rows + first;
    call.first_state = 1 + first;
    call.n_out = n;
    const int n_all = n_padded(n, {1, 2, 3, 4});
    call.part = {kv_.get(), n_all, n_all, s.is_block() ? 0 : n_slots_read(call.first_slot + n)};
    return call;
}

void HiddenStateSequence::drop_drafts(int n_left) {
    drafts_.resize(n_left);
    nodes_.resize(n_left);
}

bool HiddenStateSequence::take_step(int i, const DraftRow & row) {
    if (i >= n_draft_rows() || row_of(row.parent) != i - 1 || candidates(i, 1)[0].token != row.token) return false;
    nodes_[i] = row.node;
    return true;
}

// Writes the inputs of the draft steps in a commit's graph. The other rows of the graph are already counted.
void HiddenStateSequence::add_steps(const DraftGraph & g) {
    for (int i = 0; i < (int)g.steps.size(); ++i) {
        std::vector<Token> none;
        const DraftCall call = extend_call({{/*node=*/i + 1, 0, /*parent=*/i}}, none);
        write_inputs(drafter_.spec(), drafter_.weights(), *g.steps[i], drafter_.device().staging(g), {call});
    }
    std::fill(nodes_.end() - g.steps.size(), nodes_.end(), -1);
}

void HiddenStateSequence::run(const std::vector<DraftCall> & calls, const std::vector<DraftCall> & blocks,
                              int n_steps) {
    check_not_forked("the drafter cannot run");
    HiddenStateSequence & first = *own(calls[0].seq);
    HiddenStateDrafter & drafter = first.drafter_;
    if (drafter.options().n_threads > 1) note_helper_threads();
    GraphShape shape{calls[0].is_commit, {}, n_steps};
    for (const DraftCall & call : calls) shape.parts.push_back(call.part);
    for (const DraftCall & block : blocks) shape.block.push_back(block.part);
    DraftDevice & device = drafter.device();
    const DraftGraph & g = drafter.next_graph(shape);
    device.wait();
    write_inputs(drafter.spec(), drafter.weights(), g.context ? *g.context : g, device.staging(g), calls);
    if (!blocks.empty()) write_inputs(drafter.spec(), drafter.weights(), g, device.staging(g), blocks);
    for (const DraftCall & call : calls) {
        if (call.is_commit) own(call.seq)->kv_->n_rows += call.hidden_states.n_rows;
    }
    first.add_steps(g);
    device.start(g);
    const std::vector<LandedPicks> landed = fetch_picks(device, g);
    // On a device, the host does not wait for graphs of prompt rows.
    if (shape.n_out() > 0 || !drafter.is_remote()) device.wait();
    int at_out = 0, at_slot = 0;
    const bool gives_first = !blocks.empty() && drafter.spec().block.markov_rank > 0 && !drafter.selects();
    for (size_t i = 0; i < calls.size(); ++i) {
        const DraftCall & call = blocks.empty() ? calls[i] : blocks[i];
        DraftOutputs & outputs = own(call.seq)->outputs_;
        const int n_there = gives_first ? 1 : call.part.n_out, n = gives_first ? 1 : call.n_out;
        outputs.take(g, at_out + n_there - n, n, landed);
        at_out += n_there;
        if (calls[i].is_commit) outputs.end_block();
        if (!blocks.empty()) outputs.begin_block(g, call, at_slot, landed);
        if (!calls[i].is_commit) outputs.judge(call.feeds, call.tokens);
        at_slot += call.part.n_out;
    }
}

void HiddenStateSequence::save_rows(int n, std::vector<uint8_t> & out) const {
    drafter_.device().wait();
    kv_->save_rows(n, out);
}

void HiddenStateSequence::load_rows(ByteView bytes, int n) {
    drafter_.device().wait();
    truncate(0);
    kv_->load_rows(bytes, n);
}

void HiddenStateSequence::truncate(int n_rows) {
    kv_->n_rows = std::min(kv_->n_rows, n_rows);
    drop_drafts(0);
}

}  // namespace eaglecpp
