// SPDX-License-Identifier: MIT
#include "algo/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <locale>
#include <numeric>
#include <sstream>

#include "base/error.h"

namespace eaglecpp {

// --- the switch -----------------------------------------------------------------------------------------------------

namespace {
constexpr double weight_on = 0.10, weight_off = 0.35;  // of a new value in the advantage
constexpr double value_max = 10.0;                     // tokens
constexpr double doubt = 2.0;                          // standard errors by which the advantage must miss 0 to stop
constexpr double probe_share = 0.007;  // of plain time spent on probes; well below the ledger's allowance
constexpr double probe_gap = 8, probe_gap_most = 256;  // plain rounds from one to the next; off is never for good
constexpr double burst_gap = 2;
constexpr int n_burst = 4;
}  // namespace

void DraftSwitch::begin_request() {
    is_on_ = true;
    variance_ = std::max(variance_, 0.03);
    n_burst_ = n_since_probe_ = 0;
}

// Off only when the mean misses the mark by more than its own scatter explains: where drafting gains little the value
// of single rounds varies much, and each needless stop costs a wait for the next probes.
void DraftSwitch::weigh(double value, double speed) {
    const double weight = is_on_ ? weight_on : weight_off;
    const double error = std::clamp(value, -value_max, value_max) - advantage_;
    advantage_ += weight * error;
    variance_ += weight * ((1.0 - weight) * error * error - variance_);
    best_speed_ += (best_speed_ > 0.0 ? weight : 1.0) * (speed - best_speed_);
    if (is_on_ && advantage_ + doubt * std::sqrt(variance_ * weight / 2.0) < 0.0) {
        is_on_ = false;
        n_since_probe_ = n_off_ = 0;
    } else if (!is_on_ && advantage_ > 0.0) {
        is_on_ = true;
    }
}

// Probes come dense at first, for texts that go to and fro, then as rare as their share of the time asks.
bool DraftSwitch::is_probe_due(double cost) {
    const double fair = std::clamp(cost / probe_share, probe_gap, probe_gap_most);
    ++n_off_;
    const double gap = n_burst_ > 0 ? burst_gap : std::clamp(n_off_ / 4.0, std::max(probe_gap, fair / 3.0), fair);
    return ++n_since_probe_ >= gap;
}

void DraftSwitch::begin_probe() {
    n_since_probe_ = 0;
    n_burst_ = std::max(0, n_burst_ - 1);
}

void DraftSwitch::surprise() {
    if (!is_on_) n_burst_ = n_burst;
}

// --- one conversation -----------------------------------------------------------------------------------------------

void PlanRound::begin(Token root, const PlanLimits & most, int n_left_now, int n_pending_now) {
    decision.mode = Decision::Mode::plain;
    decision.k = decision.depth = decision.n_leaves = decision.n_text = 0;
    decision.levels.clear();
    decision.nodes.clear();
    decision.n_tokens = decision.cost = 1.0;
    limits = most;
    n_left = n_left_now;
    n_pending = n_pending_now;
    tree.reset(root);
    frontier.clear();
    draft_time = {};
    n_committed = 0;
}

// --- one round ------------------------------------------------------------------------------------------------------

namespace {
// Rounds from one measurement of the plain reference to the next: dense at first, then as rare as its price asks. A
// plain round costs what drafting gains, so it is cheapest where drafting gains little, which is where the reference
// must be exact.
constexpr int refresh_gaps[] = {0, 0, 0, 6, 24, 64};
constexpr int n_refresh_gaps = sizeof(refresh_gaps) / sizeof(refresh_gaps[0]);
constexpr double refresh_share = 0.004;  // of the time that refreshing may cost
constexpr int refresh_least = 5, refresh_most = 200, refresh_most_padded = 4000;

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
    plan.n_rounds_to_trees = 0;
    sizes_.forget();
    n_rows_last_ = 0;
}

void Planner::end_text(SequencePlan & plan) {
    acceptance_.end_text(plan.text.kind, plan.text.drafter);
    plan.text.hits = {};
}

void Planner::begin_round(int n_roots, bool is_odd) {
    n_roots_ = std::max(n_roots, 1);
    // where going to one row and back costs a device rounds, those of any size tell of the machine's speed
    if (costs_.take_changed() && !options_.pads_rows) is_plain_wanted_ = true;
    plain_ms_ = std::max(costs_.plain(n_roots_), 1e-6);
    round_draft_ms_ = 0.0;
    n_again_ = 0;
    n_padding_ = 0;
    is_measuring_ = !is_odd && is_measuring_due();
    plans_.clear();
}

bool Planner::is_measuring_due() const {
    if (is_plain_wanted_ || !costs_.is_known(n_roots_)) return true;
    double cost = speed_.speed() - 1.0;
    if (options_.pads_rows) cost += 2.0 * costs_.change_ms() / plain_ms_;
    const int most = options_.pads_rows ? refresh_most_padded : refresh_most;
    int gap = std::clamp((int)(cost / refresh_share), refresh_least, most);
    // a device has measured it when the engine was opened
    if (!options_.pads_rows && n_plain_ < n_refresh_gaps) gap = std::min(gap, refresh_gaps[n_plain_]);
    return n_since_plain_ >= gap;
}

// --- decide --------------------------------------------------------------------------------------------------------

void Planner::decide(SequencePlan & plan, const RoundRequest & request) {
    plan.round.n_peers = std::min(plan.round.n_peers, n_roots_);
    plan.round.begin(request.root, request.limits, request.n_left, request.n_pending);
    Decision & d = plan.round.decision;
    d.best_speed = plan.on_off.best_speed();
    PlanLimits & limits = plan.round.limits;
    if (options_.pads_rows && limits.n_leaves > 1 && !takes_trees(plan)) limits.n_leaves = limits.n_leaves_exact = 1;
    if (!plan.exact.is_settled) plan.exact.settle(is_exact_cheap(plan));
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
        if (!has_drafter || !plan.is_on() || is_sure) return start_text(plan, Reason::pays, 0);
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
        add_text(plan);
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
    if (!plan.round.text_draft.empty()) start_text(plan, Reason::pinned, s.k);
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
                          plan.round.limits.runs_again ? 2.0 : 1.0, pads(plan) ? &sizes_ : nullptr);
}

void Planner::catch_up(SequencePlan & plan, int n_rows, double ms) {
    plan.round.draft_time.expected_ms += costs_.commit(n_rows);
    plan.round.draft_time.ms += clean(ms);
    round_draft_ms_ += clean(ms);
}

// --- drafts from the text -------------------------------------------------------------------------------------------

// What the text itself proposes, alone and in one tree with the drafter's nodes.

void Planner::take_text(SequencePlan & plan, const TextDraft * draft) {
    plan.round.text_value = 0.0;
    plan.round.text_draft.clear();
    plan.round.text_a.clear();
    if (!draft || draft->empty()) return;
    plan.round.text_draft = *draft;
    keep_reachable(plan, plan.round.text_draft);
    text_acceptance_.predict(plan.text.kind, plan.text.hits, plan.round.text_draft, plan.round.text_a);
}

// Of the text's proposals those that could become tokens and that the strategy wants: none after the end of a
// generation.
void Planner::keep_reachable(const SequencePlan & plan, TextDraft & draft) const {
    const int n_most = plan.round.n_left - 1, k = plan.is_auto() ? INT_MAX : plan.strategy().k;
    const int reach = plan.is_auto() ? n_most : std::min(n_most, plan.strategy().depth);
    const std::vector<Token> & ends = options_.end_tokens;
    std::vector<int> n_children(draft.size(), 0);
    draft.filter([&](const TextDraft::Node & node) {
        if (node.token < 0 || node.depth > reach || n_children[node.parent] == k) return false;
        const bool is_over =
            node.parent > 0 && std::find(ends.begin(), ends.end(), draft.nodes[node.parent].token) != ends.end();
        n_children[node.parent] += !is_over;
        return !is_over;
    });
}

// Tokens that verifying the proposals of the text alone would bring beyond the price of the time; 0 = it does not pay.
double Planner::text_value(SequencePlan & plan) {
    if (plan.round.text_draft.empty() || !costs_.knows_plain()) return 0.0;
    const double price = lambda(plan);
    // chances along the paths, in one chain where only chains are allowed
    front_.assign(plan.round.text_a.size(), 1.0f);
    level_p_.clear();
    int last = 0;
    for (int i = 1; i < plan.round.text_draft.size(); ++i) {
        const int parent = plan.round.text_draft.nodes[i].parent;
        front_[i] = plan.round.text_a[i] * front_[parent];
        if (plan.round.limits.n_leaves > 1 || parent == last) level_p_.push_back(front_[i]), last = i;
    }
    std::sort(level_p_.begin(), level_p_.end(), std::greater<float>());
    set_prices(plan);
    const Offer offer = plan.round.prices.best(level_p_, price, ms_left(plan));
    return offer.n > 0 ? std::max(0.0, offer.value - price * costs_.host()) : 0.0;
}

// A round without the drafter.
void Planner::start_text(SequencePlan & plan, Reason reason, int k) {
    start(plan, Mode::draft, reason, k);
    plan.round.frontier.clear();
    add_text(plan);
}

// The first nodes of a fresh pool.
void Planner::add_text(SequencePlan & plan) {
    PlanRound & round = plan.round;
    round.pool.add_text(round.text_draft, round.text_a);
    round.decision.n_text = round.pool.n_text();
    round.pool.best_p(round.prices.n_nodes_max(), round.best_p);
}

std::string Planner::acceptance_to_text(const std::string & key) const {
    return acceptance_.to_text(key) + text_acceptance_.to_text(key);
}

bool Planner::acceptance_from_text(const std::string & text, const std::string & key) {
    const size_t at = text.find(TextAcceptance::state_kind);
    const bool fits = acceptance_.from_text(text.substr(0, at), key);
    return (at == std::string::npos || text_acceptance_.from_text(text.substr(at), key)) && fits;
}

// --- grow -----------------------------------------------------------------------------------------------------------

// While drafting: what joins the pool, and whether another drafter level pays.

namespace {
constexpr int n_ahead = 2;  // levels looked ahead, so that an expensive one before a cheap one does not end the climb
constexpr int widths[] = {1, 2, 4, 8, 16, 32, 64};

// merges `more` (any order) into `best`, which falls, keeping the n_most largest
void merge_best(std::vector<float> & best, std::vector<float> & more, int n_most) {
    std::sort(more.begin(), more.end(), std::greater<float>());
    const size_t n = std::min<size_t>(more.size(), n_most), middle = best.size();
    best.insert(best.end(), more.begin(), more.begin() + n);
    std::inplace_merge(best.begin(), best.begin() + middle, best.end(), std::greater<float>());
    if ((int)best.size() > n_most) best.resize(n_most);
}
}  // namespace

void Planner::grow(SequencePlan & plan, const std::vector<std::vector<Candidate>> & children, double ms) {
    grow({{&plan, children}}, ms);
}

// Each conversation pays for its rows.
void Planner::grow(const std::vector<Proposal> & proposals, double ms) {
    if (proposals.empty()) return;
    const bool is_first = proposals[0].plan->round.decision.levels.empty();
    int n_all = 0;
    for (const Proposal & p : proposals) {
        const PlanRound & round = p.plan->round;
        if (round.frontier.empty() || p.children.size() != round.frontier.size()) {
            fail(ErrorKind::value, "planner: %zu lists of candidates for %zu frontier nodes", p.children.size(),
                 round.frontier.size());
        }
        if (round.decision.levels.empty() != is_first) {
            fail(ErrorKind::value, "planner: a first level and a later one in one call of the drafter");
        }
        n_all += is_first ? round.n_pending : (int)round.frontier.size();
    }
    const double expected_ms = is_first ? costs_.commit(n_all) : costs_.level(n_all);
    is_first ? costs_.learn_commit(n_all, ms) : costs_.learn_level(n_all, ms);
    const bool is_sane = std::isfinite(ms) && ms > 0.0;
    if (is_sane) round_draft_ms_ += ms;
    for (const Proposal & p : proposals) {
        PlanRound & round = p.plan->round;
        const int n_rows = is_first ? round.n_pending : (int)round.frontier.size();
        const double share = (double)n_rows / std::max(n_all, 1);
        round.draft_time.expected_ms += share * expected_ms;
        if (is_sane) round.draft_time.ms += share * ms;
        if (!is_first) round.n_draft_rows += n_rows;
        round.n_peers = (int)proposals.size();
        add_level(*p.plan, p.children);
        set_frontier(*p.plan);
    }
}

// What n rows of this conversation in the next level cost it, where as many others go on as at the last one.
double Planner::level_ms(const SequencePlan & plan, int n_rows) const {
    return costs_.level(n_rows * plan.round.n_peers) / plan.round.n_peers;
}

void Planner::set_frontier(SequencePlan & plan) {
    plan.is_auto() ? next_frontier_auto(plan) : next_frontier_fixed(plan);
}

void Planner::add_level(SequencePlan & plan, const std::vector<std::vector<Candidate>> & children) {
    PlanRound & round = plan.round;
    round.pool.begin_level();
    round.decision.levels.push_back(round.frontier);
    for (size_t i = 0; i < round.frontier.size(); ++i) add_children(plan, round.frontier[i], children[i]);
    round.pool.best_p(round.prices.n_nodes_max(), round.best_p);
}

void Planner::add_children(SequencePlan & plan, int32_t parent, const std::vector<Candidate> & children) {
    DraftPool & pool = plan.round.pool;
    const DraftPool::Proposals drafted = pool.add_children(parent, children, plan.round.decision.k);
    const int depth = pool.tree().depth[parent] + 1, n = std::min(drafted.n, AcceptanceModel::n_ranks_max);
    double a[AcceptanceModel::n_ranks_max];
    acceptance_.predict(plan.text.kind, plan.text.drafter, depth, drafted.candidates, n, a);
    plan.text.chances.learn(depth, a, n, pool.p()[parent]);
    pool.set_chances(parent, a, n);
}

// --- the next level ------------------------------------------------------------------------------------------------

void Planner::next_frontier_auto(SequencePlan & plan) {
    plan.round.frontier.clear();
    const bool is_probe = plan.round.decision.mode == Mode::probe;
    if ((int)plan.round.decision.levels.size() >= plan.round.depth_max) return;

    find_candidates(plan);
    const int n_rows_left = plan.round.n_rows_left();
    const int n_wide = plan.round.limits.n_leaves > 1 ? options_.width : 1;
    const int n_most = std::min({(int)nodes_.size(), n_wide, n_rows_left});
    if (n_most < 1) return;
    std::partial_sort(nodes_.begin(), nodes_.begin() + n_most, nodes_.end(), [&](int a, int b) {
        return plan.round.pool.p()[a] != plan.round.pool.p()[b] ? plan.round.pool.p()[a] > plan.round.pool.p()[b]
                                                                : a < b;
    });
    const int n = is_probe ? 1 : best_width(plan, n_most);
    plan.round.frontier.assign(nodes_.begin(), nodes_.begin() + n);
}

// nodes_: nodes of the last level that may have children
void Planner::find_candidates(const SequencePlan & plan) {
    const std::vector<Token> & ends = options_.end_tokens;
    nodes_.clear();
    for (int i : plan.round.pool.level()) {
        const bool is_end = std::find(ends.begin(), ends.end(), plan.round.pool.tree().token[i]) != ends.end();
        if (!is_end) nodes_.push_back(i);
    }
}

// How many of the candidates nodes_[0..n) to expand; 0 = another level does not pay.
int Planner::best_width(const SequencePlan & plan, int n_candidates) {
    double best = plan.round.prices.best(plan.round.best_p, lambda(plan), ms_left(plan)).value;
    int best_n = 0;
    for (int width : widths) {
        const int n = std::min(width, n_candidates);
        const double value = foresee(plan, n);
        if (value > best) {
            best = value;
            best_n = n;
        }
        if (n == n_candidates) break;
    }
    return best_n;
}

// Best value of the pool with one to n_ahead more levels, the first one below nodes_[0..width), with children as they
// are on average; the levels' own cost taken off.
double Planner::foresee(const SequencePlan & plan, int width) {
    const double price = lambda(plan);
    const int n_wide = plan.round.limits.n_leaves > 1 ? options_.width : 1;
    const int n_levels = (int)plan.round.decision.levels.size();
    front_.clear();
    for (int i = 0; i < width; ++i) front_.push_back(plan.round.pool.p()[nodes_[i]]);
    merged_ = plan.round.best_p;
    double ms = 0.0, best = -1e9;
    for (int ahead = 1; ahead <= n_ahead && n_levels + ahead <= plan.round.depth_max && !front_.empty(); ++ahead) {
        ms += level_ms(plan, (int)front_.size());
        const auto & means = plan.text.chances.of(n_levels + ahead);
        level_p_.clear();
        for (float p : front_) {
            for (int r = 0; r < plan.round.decision.k; ++r) level_p_.push_back(p * means[r]);
        }
        merge_best(merged_, level_p_, plan.round.prices.n_nodes_max());
        best = std::max(best, plan.round.prices.best(merged_, price, ms_left(plan) - ms).value - price * ms);
        front_.assign(level_p_.begin(), level_p_.begin() + std::min((int)level_p_.size(), n_wide));
    }
    return best;
}

// EAGLE-2's growth (SafeAILab/EAGLE: eagle/model/cnets.py, topK_genrate): the k best new nodes by the drafter's own
// path probability.
void Planner::next_frontier_fixed(SequencePlan & plan) {
    plan.round.frontier.clear();
    if ((int)plan.round.decision.levels.size() >= plan.round.depth_max) return;
    nodes_ = plan.round.pool.level();
    const auto & logp = plan.round.pool.tree().logp;
    std::stable_sort(nodes_.begin(), nodes_.end(), [&](int a, int b) { return logp[a] > logp[b]; });
    const int n_rows_left = plan.round.n_rows_left();
    const int n = std::min({(int)nodes_.size(), plan.round.decision.k, n_rows_left});
    if (n > 0) plan.round.frontier.assign(nodes_.begin(), nodes_.begin() + n);
}

// --- choose ---------------------------------------------------------------------------------------------------------

// After drafting: which nodes of the pools go into the verify batch.

namespace {
double sum_of(const std::vector<float> & p, int n) {
    return std::accumulate(p.begin(), p.begin() + n, 0.0);
}
}  // namespace

void Planner::choose(const std::vector<SequencePlan *> & plans) {
    plans_ = plans;
    n_rows_ = n_roots_ + n_again_;
    for (SequencePlan * plan : plans_) {
        plan->round.frontier.clear();
        if (!plan->round.is_drafting() || plan->is_auto()) continue;
        const int n_nodes = std::min(plan->strategy().nodes, plan->round.limits.n_nodes);
        plan->round.order.build(plan->pool(), plan->pool().logp, n_nodes, plan->round.limits.n_leaves);
    }
    cut_fixed();
    if (n_roots_ > 1) {
        choose_shared(n_rows_);
    } else if (plans_.size() == 1 && plans_[0]->is_auto_drafting()) {
        choose_alone(*plans_[0]);
    }
    n_rows_ = n_roots_ + n_again_;
    for (SequencePlan * plan : plans_) n_rows_ += plan->round.tree.n_draft();
    if (plans_.size() == 1) pad(*plans_[0]);
    n_drafting_last_ = 0;
    for (SequencePlan * plan : plans_) {
        plan->round.has_drafted_last = plan->round.decision.mode == Mode::draft;
        n_drafting_last_ += plan->round.has_drafted_last;
    }
    verify_ms_expected_ = costs_.verify(n_rows_);
    const double ms = verify_ms_expected_ + round_draft_ms_ + costs_.plain_host() + costs_.host();
    for (SequencePlan * plan : plans_) {
        if (plan->round.is_verifying()) plan->round.decision.cost = costs_.is_known(n_roots_) ? rounds(ms) : 0.0;
    }
}

// One conversation: the best of all sizes at the price of time.
void Planner::choose_alone(SequencePlan & plan) {
    const double price = lambda(plan);
    plan.round.order.build(plan.pool(), plan.round.pool.p(), plan.round.prices.n_nodes_max(),
                           plan.round.limits.n_leaves);
    const std::vector<float> & p = plan.round.order.p();
    const double spent_ms = plan.round.draft_time.fair_ms() + costs_.host();
    const Offer offer = plan.round.prices.best(p, price, ms_left(plan));
    const Offer settled = plan.round.prices.best(p, price, ms_left(plan), /*is_settled=*/true);
    const double value = settled.value - price * spent_ms, ms = spent_ms + plan.round.prices.settled_ms(settled.n);
    if (pads(plan)) learn_size(plan);
    if (!plan.round.is_text_only()) weigh(plan, value, (1.0 + sum_of(p, settled.n)) / rounds(plain_ms_ + ms));
    const bool is_vain = plan.round.decision.mode == Mode::probe && value <= 0.0;
    take(plan, plan.round.order.nodes(), is_vain ? 0 : offer.n);
}

// --- sizes of batches -----------------------------------------------------------------------------------------------

namespace {
constexpr double tree_gain = 1.05;  // over chains, of which a device is sure
constexpr int tree_rounds = 32;     // from one question to the next
}  // namespace

// What devices keep for a number of rows goes with it; of trees it goes with each, because llama.cpp compares the ids
// that rows begin with, too.
bool Planner::pads(const SequencePlan & plan) const {
    return options_.pads_rows && n_roots_ == 1 && plan.round.limits.n_leaves == 1;
}

// Each tree costs another graph; whether trees pay nevertheless is asked again now and then.
bool Planner::takes_trees(SequencePlan & plan) {
    if (!plan.is_auto()) return plan.strategy().kind == Strategy::Kind::tree;
    if (costs_.knows_plain() && plan.n_rounds_to_trees-- <= 0) {
        plan.n_rounds_to_trees = tree_rounds;
        plan.takes_trees = foreseen_speed(plan, false) > tree_gain * foreseen_speed(plan, false, /*is_chain=*/true);
    }
    return plan.takes_trees;
}

// A round that does not draft is a plain one, unless it is so by chance.
void Planner::pad(const SequencePlan & plan) {
    const Reason reason = plan.decision().reason;
    const bool is_short = reason == Reason::room || reason == Reason::unmatched || reason == Reason::vain;
    if (pads(plan) && (plan.round.is_verifying() || is_short)) {
        const int n_nodes = plan.is_auto() ? plan.round.limits.n_nodes : plan.strategy().nodes;
        const int n_most = std::min(1 + std::min(n_nodes, plan.round.limits.n_nodes), BatchSizes::n_most);
        const auto ms = [&](int n) { return costs_.verify(n) + sizes_.ms(n, costs_.change_ms()); };
        int best = n_rows_;
        for (int n = n_rows_ + 1; n <= n_most; ++n) {
            if (allows(plan, n) && ms(n) < ms(best)) best = n;
        }
        n_padding_ = best - n_rows_;
        n_rows_ = best;
    }
    if (!is_measuring_) sizes_.change_to(n_rows_);
}

void Planner::learn_size(const SequencePlan & plan) {
    worth_.clear();
    for (int n = 1; n <= std::min(1 + plan.round.prices.n_nodes_max(), BatchSizes::n_most); ++n) {
        worth_.push_back(chain_gain(plan, n - 1) / lambda(plan) - costs_.verify(n));
    }
    sizes_.learn(worth_);
}

// What a chain of n nodes brings less what its levels take, in tokens: of those that are drafted as they are, of others
// as they are on average, as far as these pay.
double Planner::chain_gain(const SequencePlan & plan, int n) const {
    const std::vector<float> & p = plan.round.order.p();
    const double level = plan.round.is_text_only() ? 0.0 : lambda(plan) * level_ms(plan, 1);
    double chance = 1.0, gain = 0.0;
    for (int i = 0; i < n; ++i) {
        const bool is_drafted = i < (int)p.size();
        chance = is_drafted ? p[i] : chance * plan.text.chances.of(i + 1)[0];
        const double more = chance - (i > 0 ? level : 0.0);
        if (!is_drafted && (plan.round.is_text_only() || i >= plan.round.depth_max || more <= 0.0)) break;
        gain += more;
    }
    return gain;
}

// --- several conversations -----------------------------------------------------------------------------------------

// Nodes of all pools in one order, as many as serve all best.
void Planner::choose_shared(int n_rows) {
    const int n_most = std::max(1, costs_.n_rows_max() - n_rows);
    for (SequencePlan * plan : plans_) {
        if (!plan->is_auto_drafting()) continue;
        const int n = plan->round.decision.mode == Mode::probe ? 0 : std::min(plan->round.limits.n_nodes, n_most);
        plan->round.order.build(plan->pool(), plan->round.pool.p(), n, plan->round.limits.n_leaves);
    }
    find_shared(n_rows, n_most);
    const int n = std::accumulate(best_heads_.begin(), best_heads_.end(), 0);
    const double ms_per_node = n > 0 ? (costs_.verify(n_rows + n) - costs_.verify(n_rows)) / n : 0.0;
    for (size_t i = 0; i < plans_.size(); ++i) {
        SequencePlan & plan = *plans_[i];
        if (!plan.is_auto_drafting()) continue;
        if (!plan.round.is_text_only()) weigh_shared(plan, best_heads_[i], ms_per_node);
        take(plan, plan.round.order.nodes(), best_heads_[i]);
    }
}

// best_heads_: nodes of each plan, to maximise the product of the conversations' speeds. For a fixed count its
// logarithm is separable and concave, so taking the node that raises it most is exact; every count is looked at,
// because the cost is not convex.
void Planner::find_shared(int n_rows, int n_most) {
    heads_.assign(plans_.size(), 0);
    best_heads_ = heads_;
    sums_.assign(plans_.size(), 1.0);
    const double rest_ms = costs_.plain_host() + costs_.host() + round_draft_ms_;
    const auto goal = [&](double ms) {
        double logs = 0.0;
        for (double tokens : sums_) logs += std::log(tokens);
        return logs - n_roots_ * std::log(ms);
    };
    double best = goal(costs_.verify(n_rows) + rest_ms);
    for (int n = 1; n <= n_most; ++n) {
        int pick = -1;
        double pick_gain = 0.0;
        for (size_t i = 0; i < plans_.size(); ++i) {
            if (!plans_[i]->is_auto_drafting() || heads_[i] == plans_[i]->round.order.size()) continue;
            const double gain = plans_[i]->round.order.p()[heads_[i]] / sums_[i];
            if (pick < 0 || gain > pick_gain) pick = (int)i, pick_gain = gain;
        }
        if (pick < 0) return;
        sums_[pick] += plans_[pick]->round.order.p()[heads_[pick]++];
        const double ms = costs_.verify(n_rows + n) + rest_ms;
        if (ledger_.covers(rounds(ms) - 1.0) && is_exact_enough(n_rows + n) && goal(ms) > best) {
            best = goal(ms);
            best_heads_ = heads_;
        }
    }
}

void Planner::weigh_shared(SequencePlan & plan, int n, double ms_per_node) {
    const double price = lambda(plan);
    const double spent_ms = plan.round.draft_time.fair_ms() + costs_.host() / n_roots_;
    if (plan.round.decision.mode == Mode::probe) {
        const double value = plan.round.prices.best(plan.round.best_p, price, ms_left(plan)).value - price * spent_ms;
        return weigh(plan, value, 1.0 + value);
    }
    const double gain = sum_of(plan.round.order.p(), n), ms = spent_ms + n * ms_per_node;
    weigh(plan, gain - price * ms, (1.0 + gain) / rounds(plain_ms_ + ms));
}

namespace {
// Children right behind their parents, best first: the likeliest path comes first and without gaps.
void append_depth_first(const DraftTree & pool, const std::vector<int32_t> & nodes, int32_t parent,
                        std::vector<int32_t> & out) {
    for (int32_t node : nodes) {
        if (pool.parent[node] != parent) continue;
        out.push_back(node);
        append_depth_first(pool, nodes, node, out);
    }
}
}  // namespace

// Builds the tree of the first n of `nodes`.
void Planner::take(SequencePlan & plan, const std::vector<int32_t> & nodes, int n) {
    Decision & d = plan.round.decision;
    nodes_.assign(nodes.begin(), nodes.begin() + n);
    std::sort(nodes_.begin(), nodes_.end());
    d.nodes.clear();
    append_depth_first(plan.pool(), nodes_, 0, d.nodes);
    if (n == 0) {
        if (d.mode == Mode::draft) d.mode = Mode::probe, d.reason = Reason::vain;
        return;
    }
    if (d.reason == Reason::probe) d.mode = Mode::draft, d.reason = Reason::pays;
    plan.round.tree = plan.round.pool.tree().take(d.nodes);
    d.n_leaves = (int)plan.round.tree.leaves().size();
    d.depth = *std::max_element(plan.round.tree.depth.begin(), plan.round.tree.depth.end());
    for (int32_t node : d.nodes) d.n_tokens += plan.round.pool.p()[node];
}

void Planner::weigh(SequencePlan & plan, double value, double speed) {
    if (!std::isfinite(value) || !std::isfinite(speed)) return;
    // what the text alone would have brought is not the drafter's merit
    plan.on_off.weigh(value - plan.round.text_value, speed);
    plan.round.decision.best_speed = plan.on_off.best_speed();
}

// --- exact batches --------------------------------------------------------------------------------------------------

// Batches whose rows hold the bits of single rows, and what it costs to plan only such.

namespace {
// of the speed that all batches would give: what exactness may cost where it is wanted "where that is cheap"
constexpr double cheap = 0.95;
constexpr int n_depths_foreseen = 8;
constexpr double prior_commit = 0.08, prior_level = 0.06;  // plain rounds
}  // namespace

bool Planner::allows(const SequencePlan & plan, int n_rows) const {
    return !plan.exact.is_exact || exact_rows_.allows(n_rows);
}

// for every conversation of the batch; nobody drafting is nobody's choice
bool Planner::is_exact_enough(int n_rows) const {
    return n_rows == n_roots_ ||
           std::all_of(plans_.begin(), plans_.end(), [&](const SequencePlan * plan) { return allows(*plan, n_rows); });
}

// The fixed strategies of a batch share what an exact number of rows leaves; the last ones give way.
void Planner::cut_fixed() {
    int n_most = 0;
    const auto is_fixed = [](const SequencePlan * plan) { return plan->round.is_drafting() && !plan->is_auto(); };
    for (const SequencePlan * plan : plans_) n_most += is_fixed(plan) ? plan->round.order.size() : 0;
    int n = n_most;
    while (n > 0 && !is_exact_enough(n_rows_ + n)) --n;
    for (SequencePlan * plan : plans_) {
        if (!is_fixed(plan)) continue;
        const int n_own = std::min(n, plan->round.order.size());
        take(*plan, plan->round.order.nodes(), n_own);
        n -= n_own;
        n_rows_ += n_own;
    }
}

// A fixed strategy was asked for as it is; only exactness that was asked for, too, may cut it.
bool Planner::is_exact_cheap(const SequencePlan & plan) const {
    if (exact_rows_.allows_all(n_roots_ + plan.round.limits.n_nodes)) return true;
    if (!plan.is_auto()) return false;
    return foreseen_speed(plan, true) >= cheap * foreseen_speed(plan, false);
}

// plain rounds that a round of n_rows rows takes after `n_levels` drafter levels
double Planner::foreseen_rounds(int n_rows, int n_levels, int width) const {
    if (!costs_.knows_plain()) return costs_.prior_ratio(n_rows) + prior_commit + (n_levels - 1) * prior_level;
    const double draft_ms = costs_.commit(2) + (n_levels - 1) * costs_.level(width) + costs_.host();
    return rounds(costs_.verify(n_rows) + costs_.plain_host() + draft_ms);
}

// Tokens per plain round of the best draft, with chances as they are on average; at least plain.
double Planner::foreseen_speed(const SequencePlan & plan, bool is_exact, bool is_chain) const {
    const int n_limit = std::min(plan.round.limits.n_nodes, std::max(1, costs_.n_rows_max() - n_roots_));
    const bool is_tree = plan.round.limits.n_leaves > 1 && !is_chain;
    const int width = is_tree ? options_.k : 1;
    const double change = is_tree && options_.pads_rows ? rounds(costs_.change_ms()) : 0.0;
    double best = 1.0;
    std::vector<float> p;
    for (int depth = 1; depth <= std::min(n_depths_foreseen, options_.depth); ++depth) {
        foresee_pool(plan, depth, is_tree, p);
        double tokens = 1.0;
        for (int n = 1; n <= std::min(n_limit, (int)p.size()); ++n) {
            tokens += p[n - 1];
            if (is_exact && !exact_rows_.allows(n_roots_ + n)) continue;
            best = std::max(best, tokens / (foreseen_rounds(n_roots_ + n, depth, width) + change));
        }
    }
    return best;
}

// chances of the nodes of a pool of `depth` levels, falling
void Planner::foresee_pool(const SequencePlan & plan, int depth, bool is_tree, std::vector<float> & p) const {
    const int k = is_tree ? options_.k : 1, width = is_tree ? options_.width : 1;
    std::vector<float> front{1.0f}, next;
    p.clear();
    for (int d = 0; d < depth; ++d) {
        next.clear();
        for (float above : front) {
            for (int r = 0; r < std::min(k, MeanChances::n_ranks); ++r) {
                next.push_back(above * plan.text.chances.of(d + 1)[r]);
            }
        }
        std::sort(next.begin(), next.end(), std::greater<float>());
        p.insert(p.end(), next.begin(), next.end());
        next.resize(std::min(next.size(), (size_t)width));
        front = next;
    }
    std::sort(p.begin(), p.end(), std::greater<float>());
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
    bool is_plain = n_again_ == 0;
    for (const SequencePlan * plan : plans_) is_plain = is_plain && !plan->round.is_drafting();
    if (n_rows_ != n_rows_last_) n_alike_ = 0, is_size_free_ = n_rows_last_ == 0;
    ++n_alike_;
    n_rows_last_ = n_rows_;
    settle(clean(verify_ms), clean(round_ms), round_draft_ms_);
    learn_decode(n_alike_, n_rows_, verify_ms);
    costs_.learn_host(!is_plain, round_ms - verify_ms - round_draft_ms_);
    if (n_rows_ > n_roots_) {
        ++n_since_plain_;
    } else if (is_plain && !is_new_size()) {
        ++n_plain_;
        n_since_plain_ = 0;
        is_plain_wanted_ = false;
    }
    plans_.clear();
}

void Planner::end_odd_round() {
    charged_ = 0.0;
    n_rows_last_ = n_alike_ = 0;
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
    const bool is_verifying = n_rows_ > n_roots_;
    bool is_auto = true, is_saving = true;
    for (const SequencePlan * plan : plans_) {
        expected_ms += plan->round.draft_time.expected_ms;
        n_tokens += (double)plan->round.n_committed / n_roots_;
        is_auto = is_auto && plan->is_auto();
        is_saving = is_saving && plan->round.decision.reason == Reason::saving;
    }
    charged_ = 0.0;
    if (!costs_.is_known(n_roots_)) return;
    double cost = 1.0, first_use = 0.0, change = 0.0;
    // what a change of size takes, unless a plain round would have taken it, too
    if (is_new_size() && costs_.is_known(n_rows_)) {
        const double over_ms = std::max(0.0, verify_ms - costs_.verify(n_rows_));
        if (!is_size_free_) change = rounds(std::min(over_ms, costs_.change_ms()));
        round_ms -= over_ms;
        verify_ms -= over_ms;
    }
    if (is_verifying) {
        const double most = rounds(DraftTime::stall * (verify_ms_expected_ + costs_.plain_host() + expected_ms));
        cost = rounds(std::max(round_ms, verify_ms + draft_ms));
        if (!costs_.is_tried(n_rows_) || !costs_.is_known(n_rows_)) first_use = std::max(0.0, cost - most);
        cost = first_use > 0.0 ? cost : std::min(cost, most);
    } else if (draft_ms > 0.0) {
        const double extra_ms = std::max(round_ms - verify_ms - costs_.plain_host(), draft_ms);
        cost += rounds(std::min(extra_ms, DraftTime::stall * expected_ms));
    }
    cost += change;
    charged_ = cost;
    for (SequencePlan * plan : plans_) plan->text.recent.add(plan->round.n_committed, cost - first_use);
    speed_.add(n_tokens, cost - first_use);
    if (is_auto) ledger_.settle(n_tokens, is_saving && !is_verifying ? 1.0 + change : cost, first_use);
}

// --- what was decided, in words --------------------------------------------------------------------------------------

namespace {
using Mode = Decision::Mode;
using Reason = Decision::Reason;

constexpr std::array<const char *, 3> mode_names = {"plain", "probe", "draft"};
constexpr std::array<const char *, 12> reason_names = {"off",  "room", "measuring", "parked",  "saving",    "probe",
                                                       "vain", "pays", "pinned",    "inexact", "unmatched", "again"};
std::string join(const std::vector<int32_t> & values) {
    std::string out;
    for (int32_t v : values) out += (out.empty() ? "" : ",") + std::to_string(v);
    return out;
}

std::string plain_number(double v) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out.precision(4);
    out << v;
    return out.str();
}

std::string shape(bool is_chain, double n_nodes, double depth) {
    if (is_chain) return strf("chain %.0f", n_nodes);
    return strf("tree %.0f nodes, depth %.0f", n_nodes, depth);
}
}  // namespace

const char * reason_name(Reason reason) {
    return reason_names[(int)reason];
}

std::string Decision::to_line() const {
    std::string out = mode_names[(int)mode];
    if (mode != Mode::plain) {
        out += " k=" + std::to_string(k) + " levels=";
        for (size_t i = 0; i < levels.size(); ++i) out += (i ? "/" : "") + join(levels[i]);
        if (n_text > 0) out += " text=" + std::to_string(n_text);
    }
    if (mode == Mode::draft) {
        out += " nodes=" + join(nodes) + " depth=" + std::to_string(depth) + " leaves=" + std::to_string(n_leaves);
    }
    out += std::string(" reason=") + reason_name(reason);
    if (mode != Mode::plain) out += " tokens=" + plain_number(n_tokens) + " cost=" + plain_number(cost);
    if (best_speed > 0.0) out += " speed=" + plain_number(best_speed);
    return out;
}

std::string Decision::explain() const {
    if (mode == Mode::draft && !nodes.empty()) {
        return strf("%s: expected %.1f tokens in the time of %.2f plain steps",
                    shape(is_chain(), (double)nodes.size(), depth).c_str(), n_tokens, cost);
    }
    const std::string best =
        best_speed > 0.0 ? strf(": the best draft would reach %.2f of plain speed", best_speed) : std::string();
    switch (reason) {
        case Reason::parked:
        case Reason::probe:
        case Reason::vain:
            return "off" + best;
        case Reason::room:
            return "off: no room for a draft";
        case Reason::again:
            return "off: running accepted tokens again";
        case Reason::measuring:
            return "off: measuring a plain step";
        case Reason::unmatched:
            return "off: nothing in the text so far pays as a draft";
        case Reason::inexact:
            return "off: no batch of several rows is exact here";
        case Reason::saving:
            return "off: waiting before the next try" + (best.empty() ? "" : "," + best.substr(1));
        default:
            return "off";
    }
}

void PlanSummary::add(const Decision & decision, int n_tokens, double n_steps) {
    ++n_rounds_;
    if (n_steps > 0.0) {
        n_committed_ += n_tokens;
        n_steps_ += n_steps;
    }
    n_probes_ += decision.mode == Mode::probe;
    if (decision.mode != Mode::draft || decision.nodes.empty()) {
        // measuring rounds, missing room and rows run again say nothing about the text
        if (decision.reason != Reason::measuring && decision.reason != Reason::room &&
            decision.reason != Reason::again) {
            last_plain_.reason = decision.reason;
            last_plain_.best_speed = decision.best_speed;
        }
        return;
    }
    ++(decision.is_chain() ? n_chains_ : n_trees_);
    n_nodes_ += (double)decision.nodes.size();
    depth_ += decision.depth;
    n_tokens_ += decision.n_tokens;
    cost_ += decision.cost;
}

std::string PlanSummary::explain() const {
    if (n_rounds_ == 0) return "off";
    const int n = n_drafted();
    std::string rounds = strf("drafted in %d of %d rounds", n, n_rounds_);
    if (n_probes_ > 0) rounds += strf(", and in %d only compared a draft with the text", n_probes_);
    if (2 * n < n_rounds_)
        return n == 0 && n_probes_ == 0 ? last_plain_.explain() : last_plain_.explain() + "; " + rounds;
    return strf("%s: expected %.1f tokens in the time of %.2f plain steps; %s",
                shape(n_chains_ >= n_trees_, n_nodes(), depth()).c_str(), n_tokens_expected(), cost_expected(),
                rounds.c_str());
}

}  // namespace eaglecpp
