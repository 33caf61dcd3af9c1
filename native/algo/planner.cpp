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

constexpr int n_probe_levels = 2;

constexpr double sure_value = 2.0;      // tokens that the text alone brings: a copy, to which the drafter adds little
constexpr double surprise_below = 0.4;  // a first child that came true against such odds: the text has changed

double clean(double ms) {
    return std::isfinite(ms) && ms > 0.0 ? ms : 0.0;
}

}  // namespace

Planner::Planner(const PlannerOptions & options) : options_(options), ledger_(options.ledger) {
    if (options.k < 1 || options.k > AcceptanceModel::n_ranks_max || options.width < 1 || options.depth < 1) {
        fail(ErrorKind::value, "planner: k=%d width=%d depth=%d, expected at least 1 each and k at most %d", options.k,
             options.width, options.depth, AcceptanceModel::n_ranks_max);
    }
}

void Planner::begin_request(SequencePlan & plan, RequestKind kind, bool is_same_conversation, Exactness exactness) {
    if (!is_same_conversation) end_text(plan);
    plan.exact.begin_request(exactness);
    plan.text.kind = kind;
    plan.round.cursor = -1;
    plan.on_off.begin_request();
}

void Planner::end_text(SequencePlan & plan) {
    acceptance_.end_text(plan.text.kind, plan.text.drafter);
    plan.text.hits.restart();
}

void Planner::begin_round(int n_roots, bool is_odd) {
    n_roots_ = std::max(n_roots, 1);
    if (costs_.take_changed()) is_plain_wanted_ = true;
    plain_ms_ = std::max(costs_.plain(n_roots_), 1e-6);
    round_draft_ms_ = 0.0;
    n_again_ = 0;
    is_measuring_ = !is_odd && is_measuring_due();
    plans_.clear();
}

bool Planner::is_measuring_due() const {
    if (is_plain_wanted_ || !costs_.is_known(n_roots_)) return true;
    int gap = std::clamp((int)((speed_.speed() - 1.0) / refresh_share), refresh_least, refresh_most);
    if (n_plain_ < n_refresh_gaps) gap = std::min(gap, refresh_gaps[n_plain_]);
    return n_since_plain_ >= gap;
}

// --- decide --------------------------------------------------------------------------------------------------------

void Planner::decide(SequencePlan & plan, const RoundRequest & request) {
    plan.round.n_peers = std::min(plan.round.n_peers, n_roots_);
    plan.round.begin(request.root, request.limits, request.n_left, request.n_pending);
    Decision & d = plan.round.decision;
    d.best_speed = plan.on_off.best_speed();
    if (!plan.exact.is_settled) plan.exact.settle(is_exact_cheap(plan));
    PlanLimits & limits = plan.round.limits;
    if (plan.exact.is_exact) limits.n_leaves = std::min(limits.n_leaves, limits.n_leaves_exact);
    take_text(plan, request.text);
    n_again_ += request.n_again;
    const bool has_drafter = request.n_pending > 0;
    if (!has_drafter && !request.text) {
        d.reason = Reason::off;
    } else if (request.n_again > 0) {
        d.reason = Reason::again;
    } else if (plan.exact.is_exact && !exact_rows_.allows_any(n_roots_, n_roots_ + request.limits.n_nodes)) {
        d.reason = Reason::inexact;
        plan.exact.cut = 0;
    } else if (request.n_left < 2 || request.limits.n_nodes < 1) {
        d.reason = Reason::room;
    } else if (!plan.is_auto()) {
        decide_fixed(plan, request.n_left, has_drafter);
    } else {
        plan.round.depth_max = std::min({options_.depth, request.n_left - 1, limits.n_levels});
        decide_auto(plan, has_drafter);
    }
}

// What the text proposes costs nothing but its rows. Where it pays it is verified together with the drafter's nodes,
// and a sure copy alone: the drafter's would add less to it than they cost.
void Planner::decide_auto(SequencePlan & plan, bool has_drafter) {
    plan.round.text_value = 0.0;
    if (is_measuring_) {
        plan.round.decision.reason = Reason::measuring;
        return;
    }
    plan.round.text_value = text_value(plan);
    if (plan.round.text_value > 0.0) {
        const bool is_sure = plan.round.text_value >= sure_value;
        if (!has_drafter || !plan.is_on() || is_sure) return start_text(plan, Reason::pays, 0, plan.round.n_left - 1);
    }
    plan.round.decision.reason = Reason::unmatched;
    if (has_drafter) decide_drafter(plan);
}

void Planner::decide_drafter(SequencePlan & plan) {
    const int k = plan.round.limits.n_leaves > 1 ? options_.k : 1;
    if (!plan.is_on()) return decide_parked(plan, k);
    // to draft and then verify nothing for want of means is pure loss
    const int n = n_buyers(plan);
    const double verify_ms = costs_.verify(n_roots_ + n) - costs_.verify(n_roots_);
    if (ledger_.covers(rounds(costs_.commit(n * plan.round.n_pending) + costs_.host() + verify_ms))) {
        start(plan, Mode::draft, Reason::pays, k);
        add_text(plan, 0, plan.round.n_left - 1);
    } else {
        plan.round.decision.reason = Reason::saving;
    }
}

// Off: plain rounds, and now and then a draft that nobody verifies.
void Planner::decide_parked(SequencePlan & plan, int k) {
    plan.round.decision.reason = Reason::parked;
    const double cost = rounds(costs_.commit(plan.round.n_pending) + costs_.level(1) + costs_.host());
    if (!plan.on_off.is_probe_due(cost) || !ledger_.covers(cost)) return;
    plan.on_off.begin_probe();
    plan.round.depth_max = std::min(plan.round.depth_max, n_probe_levels);
    start(plan, Mode::probe, Reason::probe, k);
}

void Planner::decide_fixed(SequencePlan & plan, int n_left, bool has_drafter) {
    const Strategy & s = plan.strategy();
    // a draft that could only be the very last token, or beyond it, would be verified for nothing; so would one beyond
    // the rows that a batch may have
    plan.round.depth_max = std::min(s.depth, n_left - 1);
    plan.round.decision.reason = Reason::off;
    if (s.kind == Strategy::Kind::off) return;
    if (plan.exact.is_exact && n_roots_ == 1) {
        const int n_most = std::min(s.nodes, plan.round.limits.n_nodes), n_nodes = exact_rows_.largest(1 + n_most) - 1;
        plan.round.depth_max = std::min(plan.round.depth_max, n_nodes);
        if (n_nodes < n_most) plan.exact.cut = n_nodes;
        if (n_nodes == 0) plan.round.decision.reason = Reason::inexact;
        if (n_nodes == 0) return;
    }
    if (has_drafter) return start(plan, Mode::draft, Reason::pinned, s.k);
    if (s.kind == Strategy::Kind::chain) plan.round.limits.n_leaves = 1;
    plan.round.decision.reason = Reason::unmatched;
    if (!plan.round.text_draft.empty()) start_text(plan, Reason::pinned, s.k, plan.round.depth_max);
}

void Planner::start(SequencePlan & plan, Mode mode, Reason reason, int k) {
    plan.round.decision.mode = mode;
    plan.round.decision.reason = reason;
    plan.round.decision.k = k;
    plan.round.frontier.assign(1, 0);
    plan.round.pool.begin(plan.round.tree.token[0]);
    plan.round.best_p.clear();
    plan.round.cursor = 0;
    plan.round.n_draft_rows = 0;
    set_prices(plan);
}

// As many of the batch will draft as last time, and take about as many rows each.
int Planner::n_buyers(const SequencePlan & plan) const {
    return std::clamp(n_drafting_last_ + !plan.round.has_drafted_last, 1, n_roots_);
}

void Planner::set_prices(SequencePlan & plan) {
    const int n_buyers = this->n_buyers(plan);
    const int n_rows = n_roots_;
    const RowCounts * exact_rows = plan.exact.is_exact && n_roots_ == 1 ? &exact_rows_ : nullptr;
    const int n_rows_max = std::max(costs_.n_rows_max(), exact_rows ? exact_rows->next(n_rows) : 0);
    const int n_most = std::min(plan.round.limits.n_nodes, std::max(1, (n_rows_max - n_rows) / n_buyers));
    plan.round.prices.set(costs_, n_rows, n_most, ledger_.first_uses() * plain_ms_, exact_rows, n_buyers,
                          plan.round.limits.runs_again ? 2.0 : 1.0);
}

void Planner::catch_up(SequencePlan & plan, int n_rows, double ms) {
    plan.round.draft_time.expected_ms += costs_.commit(n_rows);
    plan.round.draft_time.ms += clean(ms);
    round_draft_ms_ += clean(ms);
}

// --- learn ---------------------------------------------------------------------------------------------------------

void Planner::learn(SequencePlan & plan, const Tokens & tokens) {
    plan.round.n_committed = (int)tokens.size();
    if (!plan.round.text_draft.empty())
        text_acceptance_.learn(plan.text.kind, plan.text.hits, plan.round.text_draft, tokens);
    walk(plan, tokens);
}

// Every node the target visited has a known next token, so all of its proposed children get a label: the ones that
// were not verified and the ones below the last accepted node, too. After a probe the walk goes on through the plain
// rounds that follow. Nodes it never visits teach nothing.
void Planner::walk(SequencePlan & plan, const Tokens & tokens) {
    const DraftPool & pool = plan.round.pool;
    int & cursor = plan.round.cursor;
    for (Token token : tokens) {
        const int node = cursor;
        if (node < 0) return;
        cursor = -1;
        const DraftPool::Proposals drafted = pool.proposals(node);
        if (drafted.n == 0) return;
        int matched = -1;
        for (int i = 0; i < drafted.n && matched < 0; ++i) {
            if (drafted.candidates[i].token == token) matched = i;
        }
        const int n_known = std::min(drafted.n, AcceptanceModel::n_ranks_max);
        acceptance_.learn(plan.text.kind, plan.text.drafter, pool.tree().depth[node] + 1, drafted.candidates, n_known,
                          matched);
        if (matched == 0 && pool.given_parent(drafted.nodes[0]) < surprise_below) plan.on_off.surprise();
        if (matched >= 0) cursor = drafted.nodes[matched];
    }
}

void Planner::end_round(double verify_ms, double round_ms) {
    bool is_plain = n_again_ == 0, is_verifying = !is_plain;
    for (const SequencePlan * plan : plans_) {
        is_plain = is_plain && !plan->round.is_drafting();
        is_verifying = is_verifying || plan->round.is_verifying();
    }
    settle(clean(verify_ms), clean(round_ms), round_draft_ms_);
    costs_.learn_verify(n_rows_, verify_ms);
    costs_.learn_host(!is_plain, round_ms - verify_ms - round_draft_ms_);
    n_nodes_last_ = n_rows_ - n_roots_;
    if (is_verifying) {
        ++n_since_plain_;
    } else if (is_plain) {
        ++n_plain_;
        n_since_plain_ = 0;
        is_plain_wanted_ = false;
    }
    plans_.clear();
}

void Planner::end_odd_round() {
    charged_ = 0.0;
    n_nodes_last_ = n_rows_ - n_roots_;
    plans_.clear();
}

void Planner::set_n_threads(int n_threads) {
    if (n_threads == n_threads_) return;
    if (n_threads_ == 0) {
        n_threads_ = n_threads_usual_ = n_threads;
        return;
    }
    other_costs_[n_threads_] = costs_;
    const auto known = other_costs_.find(n_threads);
    if (known != other_costs_.end()) costs_ = known->second;
    costs_.expect_change();
    n_threads_ = n_threads;
}

const CostTable & Planner::usual_costs() const {
    return n_threads_ == n_threads_usual_ ? costs_ : other_costs_.at(n_threads_usual_);
}

// The ledger and the speeds of late. A plain round counts as exactly one, whatever its clock said; so does the plain
// part of a probing round. Time beyond a stall's limit is not charged where the round's price is known. Nor does the
// ledger pay for rows that the drafter has to catch up on while it saves for drafting: where the drafter is large
// beside the target, that would take all that saving earns, and drafting would never begin again.
void Planner::settle(double verify_ms, double round_ms, double draft_ms) {
    double expected_ms = costs_.host(), n_tokens = 0.0;
    bool is_verifying = n_again_ > 0, is_auto = true, is_saving = true;
    for (const SequencePlan * plan : plans_) {
        expected_ms += plan->round.draft_time.expected_ms;
        n_tokens += (double)plan->round.n_committed / n_roots_;
        is_verifying = is_verifying || plan->round.is_verifying();
        is_auto = is_auto && plan->is_auto();
        is_saving = is_saving && plan->round.decision.reason == Reason::saving;
    }
    charged_ = 0.0;
    if (!costs_.is_known(n_roots_)) return;
    double cost = 1.0, first_use = 0.0;
    if (is_verifying) {
        const double most = rounds(DraftTime::stall * (verify_ms_expected_ + costs_.plain_host() + expected_ms));
        cost = rounds(std::max(round_ms, verify_ms + draft_ms));
        if (!costs_.is_tried(n_rows_) || !costs_.is_known(n_rows_)) first_use = std::max(0.0, cost - most);
        cost = first_use > 0.0 ? cost : std::min(cost, most);
    } else if (draft_ms > 0.0) {
        const double extra_ms = std::max(round_ms - verify_ms - costs_.plain_host(), draft_ms);
        cost += rounds(std::min(extra_ms, DraftTime::stall * expected_ms));
    }
    charged_ = cost;
    for (SequencePlan * plan : plans_) plan->text.recent.add(plan->round.n_committed, cost - first_use);
    speed_.add(n_tokens, cost - first_use);
    if (is_auto) ledger_.settle(n_tokens, is_saving && !is_verifying ? 1.0 : cost, first_use);
}

}  // namespace eaglecpp
