// SPDX-License-Identifier: MIT
#include "engine/drafting.h"

#include <algorithm>
#include <optional>

#include "base/types.h"

namespace eaglecpp {

// A generation that does not draft commits its pending rows to the drafter once it has this many rows, which fit into
// one commit graph. So the stored hidden states stay small, and an unused drafter costs little. Usually, a probe
// commits the rows earlier.
static constexpr int n_pending_max = 128;

void Drafting::set_window(Sequence & s) {
    if (!s.draft) return;
    const bool is_free = !s.is_prefilling() && s.plan.is_auto();
    s.draft->window = windows_.next((int)s.tokens.size(), s.params.draft_window, is_free);
}

void Drafting::plan(const std::vector<Sequence *> & sequences) {
    for (Sequence * s : sequences) {
        const double start = now_ms();
        set_window(*s);
        plan(*s);
        if (const int n_rows = s->n_pending(); s->plan.frontier().empty() && n_rows >= n_pending_max) {
            s->commit_pending();
            planner_.catch_up(s->plan, n_rows, now_ms() - start);
        }
        s->stats.draft_ms += now_ms() - start;
    }
}

void Drafting::draft(const std::vector<Sequence *> & sequences) {
    std::vector<Sequence *> growing;
    for (Sequence * s : sequences) {
        if (!s->plan.frontier().empty()) growing.push_back(s);
    }
    if (!growing.empty()) grow(std::move(growing));
    for (Sequence * s : sequences) {
        const double start = now_ms();
        force(*s);
        s->stats.draft_ms += now_ms() - start;
    }
}

void Drafting::learn(const Sequence & s, int n_tried, int n_accepted) {
    const DraftTree & tree = s.plan.tree();
    for (int node = 1; node < tree.size(); ++node) {
        if (s.plan.is_from_text(node)) return;
    }
    if (s.draft) windows_.learn((int)s.tokens.size(), s.draft->window, n_tried, n_accepted);
}

void Drafting::plan(Sequence & s) {
    BatchPart & round = s.plan.round;
    round.n_left = s.n_max - (int)s.tokens.size();
    round.n_pending = s.n_pending();
    round.n_replay = s.n_replay;
    round.limits.replays = target_.copies_states();
    round.limits.n_nodes = target_.options().n_draft_max;
    round.limits.n_leaves = s.range.count;
    round.limits.n_leaves_exact = target_.keeps_order() && target_.cells().has_room_for_trees() ? s.range.count : 1;
    round.limits.n_draft_rows = traits_.n_draft_rows_max;
    round.limits.n_step_rows = traits_.n_step_rows_max;
    round.limits.n_block_rows = traits_.n_block_rows;
    if (traits_.depth_max > 0) {
        // The captured graphs of a device always compute all draft steps.
        const int n_requested = planner_.options().pads_rows ? INT_MAX : s.drafted_depth.n_requested();
        round.limits.depth_max = std::min(traits_.depth_max, n_requested);
    }
    round.drafts_text = s.uses_text || s.forces;
    if (round.drafts_text) round.text_draft = propose_text(s);
    planner_.decide(s.plan);
}

// Proposes the forced tokens of the grammar, then tokens copied from the text. Cuts the draft at the first token that
// the grammar forbids.
TextDraft Drafting::propose_text(Sequence & s) {
    const int n_max = s.plan.round.limits.n_nodes;
    if (!s.sampler->grammar()) return s.text.propose(n_max);
    const ForcedRun forced = s.sampler->grammar()->forced_behind({}, n_max);
    TextDraft draft;
    if (s.uses_text) draft = s.text.propose(n_max - forced.size(), forced.tokens);
    draft.n_forced = forced.size();
    draft.is_certain = forced.is_certain;
    Tokens path = forced.tokens;
    for (Token token : draft.tokens) {
        std::vector<Candidate> one{{token, 0.0f}};
        drop_forbidden(s, path, one);
        if (one.empty()) break;
        path.push_back(token);
    }
    draft.tokens = path;
    return draft;
}

// Returns the tokens on the path to a node, without the root, which the grammar has already read.
static Tokens drafts_to(const DraftTree & pool, int32_t node) {
    Tokens path;
    for (int32_t on : pool.path(node)) path.push_back(pool.token[on]);
    path.erase(path.begin());
    return path;
}

// Adds the tokens that the grammar forces after the likeliest nodes of the draft pool.
void Drafting::force(Sequence & s) {
    constexpr float p_least = 0.1f;
    constexpr size_t n_max = 8;
    const DraftTree & pool = s.plan.pool();
    if (!s.forces || s.plan.decision().mode == Decision::Mode::target_only) return;
    std::vector<int32_t> nodes;
    for (int32_t node = 1 + s.plan.decision().n_forced; node < pool.size(); ++node) {
        if (s.plan.chance(node) >= p_least) nodes.push_back(node);
    }
    std::stable_sort(nodes.begin(), nodes.end(),
                     [&](int32_t a, int32_t b) { return s.plan.chance(a) > s.plan.chance(b); });
    nodes.resize(std::min(nodes.size(), n_max));
    for (int32_t node : nodes) {
        const int n_draft_max = target_.options().n_draft_max;
        planner_.add_forced(s.plan, node, s.sampler->grammar()->forced_behind(drafts_to(pool, node), n_draft_max));
    }
}

// Removes the candidates for children that the grammar forbids after `path`.
void Drafting::drop_forbidden(Sequence & s, const Tokens & path, std::vector<Candidate> & children) {
    if (!s.sampler->grammar()) return;
    Tokens tokens;
    for (const Candidate & c : children) tokens.push_back(c.token);
    const std::vector<bool> allowed = s.sampler->grammar()->allows_behind(path, tokens);
    size_t n = 0;
    for (size_t i = 0; i < children.size(); ++i) {
        if (allowed[i]) children[n++] = children[i];
    }
    children.resize(n);
}

// Returns the drafter's candidates for a node's children, which are at index `pos` of the text. `row` is the node's
// output in the drafter's last call. If the target draws with our noise, candidates with the same noise predict the
// target's choice best; otherwise the likeliest tokens do. A parallel drafter also uses the likeliest tokens from its
// second step on. Its distribution is then a mean over the possible prefixes, and tokens drawn independently from such
// distributions do not form a text (z-lab/dflash#169).
std::vector<Candidate> Drafting::propose(Sequence & s, int row, Pos pos) const {
    const bool is_mean = traits_.is_parallel && row > 0;
    return s.draft->candidates(row, s.plan.decision().k, is_mean ? std::nullopt : s.sampler->coupled(), pos);
}

// Returns the number of additional draft steps of a chain in the commit's graph. This is the depth of a fixed strategy,
// or the usual number in recent rounds. Only powers of two are used, because each number needs a separate graph. On an
// H200 with the drafter of an 8B model, an unused step costs 0.03 ms, and a step in its own graph costs 0.17 ms.
int Drafting::n_steps(const Sequence & s) const {
    constexpr int n_max = 8;
    if (!drafter_->can_step() || s.sampler->coupled() || s.plan.decision().k != 1 || s.sampler->grammar()) return 0;
    const int n = std::min(s.plan.round.depth_max - 1, n_max);
    if (!s.plan.is_auto()) return n;
    constexpr double n_rare = 0.3;  // minimum share of rounds that need a step for the step to run
    int n_usual = 1;
    while (n_usual < n_max && 1.0 + n_usual + n_rare < s.drafted_depth.mean()) n_usual *= 2;
    return s.drafted_depth.mean() < 1.0 + n_rare || n < n_usual ? 0 : n_usual;
}

// Returns the nodes of the frontier as draft rows.
static std::vector<DraftRow> next_rows(const Sequence & s) {
    const DraftTree & pool = s.plan.pool();
    std::vector<DraftRow> rows;
    for (int32_t node : s.plan.frontier()) rows.push_back({node, pool.token[node], pool.parent[node]});
    return rows;
}

// Drafts step by step as the planner requests. Each step runs all conversations in one graph. The pending rows give the
// children of the roots. Then each draft row gives the children of its node. Every conversation in a step is charged
// the time of the whole step. A parallel drafter gives all steps at once.
void Drafting::grow(std::vector<Sequence *> growing) {
    double start = now_ms();
    const auto spend = [&] {
        const double ms = now_ms() - start;
        for (Sequence * s : growing) s->stats.draft_ms += ms;
        return ms;
    };
    const int n_steps = growing.size() == 1 ? this->n_steps(*growing[0]) : 0;
    std::vector<DraftRequest> commits;
    for (Sequence * s : growing) {
        const int n_ahead = traits_.depth_max > 0 ? s->plan.round.depth_max - 1 : 0;
        commits.push_back({s->draft.get(), s->pending(), &s->tokens[s->draft->n_rows() + 1], n_ahead, n_steps});
    }
    const double commit_ms = planner_.costs().commit(commits[0].hidden_states.n_rows);
    drafter_->commit_together(commits);
    for (Sequence * s : growing) propose_step(*s, /*was_run=*/false);
    double ms = spend();
    // One call ran the commit and all of these steps. The time in excess of a commit without steps is divided among the
    // steps. The cost model's prices do not apply, because steps take less time in the commit's graph than in separate
    // graphs.
    const double step_ms = n_steps > 0 ? std::max(0.0, ms - commit_ms) / n_steps : 0.0;
    ms -= n_steps * step_ms;
    for (int n_used = 0;; ++n_used) {
        planner_.grow(plans_of(growing), ms);
        const auto is_over = [](const Sequence * s) { return s->plan.frontier().empty(); };
        for (Sequence * s : growing) {
            if (is_over(s)) s->drafted_depth.add((int)s->plan.decision().steps.size());
        }
        growing.erase(std::remove_if(growing.begin(), growing.end(), is_over), growing.end());
        if (growing.empty()) return;
        start = now_ms();
        // The commit may already have run the next step for this frontier.
        const bool was_run = n_used < n_steps && growing[0]->plan.frontier().size() == 1 &&
                             growing[0]->draft->take_step(n_used, next_rows(*growing[0])[0]);
        if (!was_run) {
            n_used = n_steps;  // discards the remaining steps of the commit
            std::vector<DraftRequest> steps;
            for (Sequence * s : growing) steps.push_back(DraftRequest::step(s->draft.get(), next_rows(*s)));
            if (!traits_.is_parallel) drafter_->extend_together(steps);
        }
        for (Sequence * s : growing) propose_step(*s, was_run);
        ms = spend() + (was_run ? step_ms : 0.0);
    }
}

// Sets the candidates of the drafter's last call for each node of the frontier. A parallel drafter's candidates do not
// depend on the drafts before them.
void Drafting::propose_step(Sequence & s, bool was_run) {
    const std::vector<int32_t> & frontier = s.plan.frontier();
    const DraftTree & pool = s.plan.pool();
    const bool is_parallel = traits_.is_parallel;
    std::vector<Candidate> next;
    std::vector<std::vector<Candidate>> & children = s.plan.round.children;
    children.clear();
    for (size_t i = 0; i < frontier.size(); ++i) {
        const int depth = pool.depth[frontier[i]];
        // The position of the root's children is the length of the text.
        const Pos pos = (Pos)s.tokens.size() + depth;
        if (!is_parallel || i == 0) next = propose(s, is_parallel || was_run ? depth : (int)i, pos);
        children.push_back(next);
        if (s.sampler->grammar()) drop_forbidden(s, drafts_to(pool, frontier[i]), children.back());
    }
}

}  // namespace eaglecpp
