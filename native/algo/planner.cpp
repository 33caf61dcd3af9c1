// SPDX-License-Identifier: MIT
#include "algo/planner.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace eaglecpp {

namespace {
// Rounds from one measurement of the plain reference to the next: dense at first, then as rare as its price asks. A
// plain round costs what drafting gains, so it is cheapest where drafting gains little, which is where the reference
// must be exact.
constexpr int refresh_gaps[] = {0, 0, 0, 6, 24, 64};
constexpr int n_refresh_gaps = sizeof(refresh_gaps) / sizeof(refresh_gaps[0]);
constexpr double refresh_share = 0.004;  // of the time that refreshing may cost
constexpr int refresh_least = 5, refresh_most = 200;

constexpr double surprise_below = 0.4;  // a first child that came true against such odds: the text has changed
constexpr double stall = 1.5;           // times the expected round: beyond that the machine stalled, not the draft

double clean(double ms) { return std::isfinite(ms) && ms > 0.0 ? ms : 0.0; }
}  // namespace

Planner::Planner(const PlannerOptions & options) : options_(options), ledger_(options.ledger) {
    if (options.k < 1 || options.k > AcceptanceModel::n_ranks_max || options.width < 1 || options.depth < 1) {
        fail(ErrorKind::value, "planner: k=%d width=%d depth=%d, expected at least 1 each and k at most %d", options.k,
             options.width, options.depth, AcceptanceModel::n_ranks_max);
    }
}

void Planner::begin_request(SequencePlan & plan, RequestKind kind, bool is_same_conversation) {
    plan.kind_ = kind;
    plan.cursor_ = -1;
    plan.is_on_ = true;
    plan.advantage_ = std::max(plan.advantage_, 0.1);
    plan.n_burst_ = 0;
    plan.n_since_probe_ = 0;
    if (plan.mean_p_[0][0] == 0.0f) {
        for (auto & depth : plan.mean_p_) {
            for (int r = 0; r < SequencePlan::n_ranks; ++r) depth[r] = r == 0 ? 0.6f : 0.12f / (float)(r * r);
        }
    }
    if (!is_same_conversation) plan.text_.restart();
}

void Planner::begin_round(int n_roots, int n_kv) {
    n_roots_ = std::max(n_roots, 1);
    costs_.set_kv(n_kv);
    if (costs_.take_changed()) is_plain_wanted_ = true;
    plain_ms_ = std::max(costs_.plain(n_roots_), 1e-6);
    round_draft_ms_ = 0.0;
    is_measuring_ = is_measuring_due();
    plans_.clear();
}

bool Planner::is_measuring_due() const {
    if (is_plain_wanted_ || !costs_.is_known(n_roots_)) return true;
    const double gain = std::max(speed_.speed() - 1.0, 0.0);
    int gap = std::clamp((int)(gain / refresh_share), refresh_least, refresh_most);
    if (n_plain_ < n_refresh_gaps) gap = std::min(gap, refresh_gaps[n_plain_]);
    // few samples of a noisy clock
    const double noise = costs_.noise() / 0.05;
    if (n_plain_ < std::min(24.0, noise * noise)) gap = std::min(gap, 4);
    return n_since_plain_ >= gap;
}

// --- decide ----------------------------------------------------------------------------------------------------------

void Planner::decide(SequencePlan & plan, const RoundRequest & request) {
    Decision & d = plan.decision_;
    d.mode = Mode::plain;
    d.k = 0;
    d.levels.clear();
    d.nodes.clear();
    d.depth = d.n_leaves = 0;
    d.n_tokens = d.cost = 1.0;
    d.best_speed = plan.best_speed_;
    plan.frontier_.clear();
    plan.draft_ms_ = plan.draft_ms_expected_ = 0.0;
    plan.n_committed_ = 0;
    plan.limits_ = request.limits;
    plan.n_pending_ = request.n_pending;
    plan.tree_ = DraftTree(request.root);

    if (request.n_pending < 1) {
        d.reason = Reason::off;
    } else if (plan.rule_ == SequencePlan::Rule::replay) {
        decide_replay(plan);
    } else if (request.n_left < 2 || request.limits.n_nodes < 1) {
        d.reason = Reason::room;
    } else if (plan.rule_ == SequencePlan::Rule::fixed) {
        decide_fixed(plan, request.n_left);
    } else {
        plan.depth_max_ = std::min(options_.depth, request.n_left - 1);
        decide_auto(plan);
    }
}

void Planner::decide_auto(SequencePlan & plan) {
    Decision & d = plan.decision_;
    if (is_measuring_) {
        d.reason = Reason::measuring;
        return;
    }
    const double draft_ms = costs_.commit(plan.n_pending_) + costs_.host();
    const int k = plan.limits_.n_leaves > 1 ? options_.k : 1;
    if (!plan.is_on_) {
        const double cost = rounds(draft_ms + costs_.level(1));
        const int gap = plan.n_burst_ > 0 ? 2 : std::max(options_.probe_gap, (int)std::min(1e6, std::ceil(cost / options_.probe_share)));
        d.reason = Reason::parked;
        if (++plan.n_since_probe_ < gap || !ledger_.covers(cost)) return;
        plan.n_since_probe_ = 0;
        plan.n_burst_ = std::max(0, plan.n_burst_ - 1);
        start(plan, Mode::probe, Reason::probe, k);
        return;
    }
    const double verify_ms = costs_.verify(n_roots_ + 1) - (plain_ms_ - costs_.plain_host());
    d.reason = Reason::saving;
    if (!ledger_.covers(rounds(draft_ms + verify_ms))) return;
    start(plan, Mode::draft, Reason::pays, k);
}

void Planner::decide_fixed(SequencePlan & plan, int n_left) {
    const Strategy & s = plan.strategy_;
    plan.depth_max_ = std::min(s.depth, n_left - 1);
    plan.decision_.reason = Reason::off;
    if (s.kind != Strategy::Kind::off) start(plan, Mode::draft, Reason::pinned, s.k);
}

void Planner::decide_replay(SequencePlan & plan) {
    plan.decision_.reason = Reason::replay;
    if (plan.n_replayed_ == plan.replay_.size()) return;
    const Decision & logged = plan.replay_[plan.n_replayed_++];
    if (logged.mode == Mode::plain) return;
    if (logged.k < 1 || logged.levels.empty() || logged.levels[0] != std::vector<int32_t>{0}) {
        fail(ErrorKind::value, "plan log: round %zu drafts without k or levels", plan.n_replayed_);
    }
    start(plan, logged.mode, Reason::replay, logged.k);
}

void Planner::start(SequencePlan & plan, Mode mode, Reason reason, int k) {
    plan.decision_.mode = mode;
    plan.decision_.reason = reason;
    plan.decision_.k = k;
    plan.frontier_.assign(1, 0);
    plan.pool_ = plan.tree_;
    plan.proposed_.assign(1, {plan.tree_.token[0], 0.0f});
    plan.p_.assign(1, 1.0f);
    plan.first_child_.assign(1, -1);
    plan.n_children_.assign(1, 0);
    plan.best_p_.clear();
    plan.cursor_ = 0;
    plan.n_draft_rows_ = 0;
    plan.first_new_ = 1;
    const int n_others = n_roots_ > 1 ? std::max(0, n_nodes_last_ - (int)plan.order_.size()) : 0;
    const int n_rows = n_roots_ + n_others;
    const int n_most = std::min(plan.limits_.n_nodes, std::max(1, costs_.n_rows_max() - n_rows));
    plan.prices_.set(costs_, n_rows, n_most);
    plan.prices_.replay.clear();
    for (int j = 0; plan.limits_.replays && j <= plan.depth_max_; ++j) {
        plan.prices_.replay.push_back(costs_.verify(1 + j));
    }
}

// --- learn -----------------------------------------------------------------------------------------------------------

void Planner::learn(SequencePlan & plan, const Tokens & tokens) {
    plan.n_committed_ = (int)tokens.size();
    walk(plan, tokens);
}

// Every node the target visited has a known next token, so all of its proposed children get a label: the ones that
// were not verified and the ones below the last accepted node, too. After a probe the walk goes on through the plain
// rounds that follow. Nodes it never visits teach nothing.
void Planner::walk(SequencePlan & plan, const Tokens & tokens) {
    for (Token token : tokens) {
        const int node = plan.cursor_;
        if (node < 0) return;
        const int first = plan.first_child_[node], n = plan.n_children_[node];
        plan.cursor_ = -1;
        if (n == 0) return;
        int matched = -1;
        for (int i = 0; i < n && matched < 0; ++i) {
            if (plan.proposed_[first + i].token == token) matched = i;
        }
        const int n_known = std::min(n, AcceptanceModel::n_ranks_max);
        acceptance_.learn(plan.kind_, plan.text_, plan.pool_.depth[node] + 1, &plan.proposed_[first], n_known, matched);
        if (matched == 0 && !plan.is_on_ && plan.p_[first] < surprise_below * plan.p_[node]) {
            plan.n_burst_ = options_.n_burst;
        }
        if (matched >= 0) plan.cursor_ = first + matched;
    }
}

void Planner::end_round(double verify_ms, double round_ms) {
    double draft_ms = 0.0;
    bool is_plain = true, is_verifying = false;
    for (const SequencePlan * plan : plans_) {
        draft_ms += plan->draft_ms_;
        is_plain = is_plain && !plan->is_drafting();
        is_verifying = is_verifying || !plan->decision_.nodes.empty();
    }
    settle(clean(verify_ms), clean(round_ms), draft_ms);
    costs_.learn_verify(n_rows_, verify_ms);
    if (is_plain || is_verifying) costs_.learn_host(!is_plain, round_ms - verify_ms - draft_ms);
    n_nodes_last_ = n_rows_ - n_roots_;
    if (is_verifying) {
        ++n_since_plain_;
    } else if (is_plain) {
        ++n_plain_;
        n_since_plain_ = 0;
        is_plain_wanted_ = false;
    }
}

// The ledger and the speed of late. A plain round counts as exactly one; the plain part of a probing round, too.
void Planner::settle(double verify_ms, double round_ms, double draft_ms) {
    double expected_draft_ms = 0.0, n_tokens = 0.0;
    bool is_verifying = false, is_fixed = false;
    for (const SequencePlan * plan : plans_) {
        expected_draft_ms += plan->draft_ms_expected_;
        n_tokens += (double)plan->n_committed_ / n_roots_;
        is_verifying = is_verifying || !plan->decision_.nodes.empty();
        is_fixed = is_fixed || plan->rule_ != SequencePlan::Rule::automatic;
    }
    double cost = 1.0;
    if (is_verifying) {
        const double expected = verify_ms_expected_ + expected_draft_ms + costs_.plain_host() + costs_.host();
        cost = rounds(std::min(std::max(round_ms, verify_ms + draft_ms), stall * expected));
    } else {
        cost += rounds(std::min(draft_ms, stall * expected_draft_ms));
    }
    for (SequencePlan * plan : plans_) plan->recent_.add(plan->n_committed_, cost);
    speed_.add(n_tokens, cost);
    if (!is_fixed && costs_.is_known(n_roots_)) ledger_.settle(n_tokens, cost);
}

}  // namespace eaglecpp
