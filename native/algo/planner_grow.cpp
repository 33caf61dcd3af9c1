// SPDX-License-Identifier: MIT
// Planner, while drafting: what joins the pool, and whether another drafter level pays.
#include <algorithm>
#include <cmath>
#include <functional>

#include "algo/planner.h"
#include "base/error.h"

namespace eaglecpp {

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

    // a node below the price of the cheapest verification row would not be verified, nor would its children
    find_candidates(plan, is_probe ? 0.0 : lambda(plan) * plan.round.prices.ms_per_node());
    const int n_rows_left = plan.round.limits.n_draft_rows - plan.round.n_draft_rows;
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
void Planner::find_candidates(const SequencePlan & plan, double p_least) {
    const std::vector<Token> & ends = options_.end_tokens;
    nodes_.clear();
    for (int i : plan.round.pool.level()) {
        const bool is_end = std::find(ends.begin(), ends.end(), plan.round.pool.tree().token[i]) != ends.end();
        if (!is_end && plan.round.pool.p()[i] >= p_least) nodes_.push_back(i);
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
    const double price = lambda(plan), least = price * plan.round.prices.ms_per_node();
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
        front_.clear();
        for (int i = 0; i < (int)level_p_.size() && i < n_wide && level_p_[i] >= least; ++i) {
            front_.push_back(level_p_[i]);
        }
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
    const int n_rows_left = plan.round.limits.n_draft_rows - plan.round.n_draft_rows;
    const int n = std::min({(int)nodes_.size(), plan.round.decision.k, n_rows_left});
    if (n > 0) plan.round.frontier.assign(nodes_.begin(), nodes_.begin() + n);
}

}  // namespace eaglecpp
