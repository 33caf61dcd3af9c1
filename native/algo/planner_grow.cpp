// SPDX-License-Identifier: MIT
// Planner, while drafting: what joins the pool, and whether another drafter level pays.
#include <algorithm>
#include <cmath>
#include <functional>

#include "algo/planner.h"
#include "base/error.h"

namespace eaglecpp {

namespace {
constexpr float revisit = 0.03f;  // per level above it
constexpr float logp_min = -30.0f;
constexpr int n_ahead = 2;  // levels looked ahead, so that an expensive one before a cheap one does not end the climb
constexpr int n_probe_levels = 2;
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
    if (plan.frontier_.empty() || children.size() != plan.frontier_.size()) {
        fail(ErrorKind::value, "planner: %zu lists of candidates for %zu frontier nodes", children.size(),
             plan.frontier_.size());
    }
    const int n_rows = (int)plan.frontier_.size();
    if (plan.decision_.levels.empty()) {
        plan.draft_ms_expected_ += costs_.commit(plan.n_pending_);
        costs_.learn_commit(plan.n_pending_, ms);
    } else {
        plan.draft_ms_expected_ += costs_.level(n_rows);
        costs_.learn_level(n_rows, ms);
        plan.n_draft_rows_ += n_rows;
    }
    if (std::isfinite(ms) && ms > 0.0) {
        plan.draft_ms_ += ms;
        round_draft_ms_ += ms;
    }
    add_level(plan, children);
    switch (plan.rule_) {
        case SequencePlan::Rule::automatic:
            next_frontier_auto(plan);
            break;
        case SequencePlan::Rule::fixed:
            next_frontier_fixed(plan);
            break;
        case SequencePlan::Rule::replay:
            next_frontier_replay(plan);
            break;
    }
}

void Planner::add_level(SequencePlan & plan, const std::vector<std::vector<Candidate>> & children) {
    plan.level_.clear();
    const int n_before = plan.pool_.size();
    plan.decision_.levels.push_back(plan.frontier_);
    for (size_t i = 0; i < plan.frontier_.size(); ++i) add_children(plan, plan.frontier_[i], children[i]);
    // the drafter's word changes the chances of what the text proposed
    if (plan.decision_.n_text > 0) plan.best_p_.clear();
    level_p_.assign(plan.p_.begin() + (plan.decision_.n_text > 0 ? 1 : n_before), plan.p_.end());
    merge_best(plan.best_p_, level_p_, plan.prices_.n_nodes_max());
}

void Planner::add_children(SequencePlan & plan, int32_t parent, const std::vector<Candidate> & children) {
    const int n = std::min((int)children.size(), plan.decision_.k);
    const int first = (int)plan.proposed_.size();
    const int depth = plan.pool_.depth[parent] + 1;
    plan.first_child_[parent] = first;
    plan.n_children_[parent] = n;
    for (int i = 0; i < n; ++i) {
        const float logp = children[i].logp > logp_min ? std::min(children[i].logp, 0.0f) : logp_min;
        int node = text_child(plan, parent, children[i].token);
        if (node < 0) {
            node = plan.pool_.add(children[i].token, parent, logp);
            plan.p_.push_back(0.0f);
            plan.a_.push_back(0.0f);
            plan.is_text_.push_back(0);
            plan.first_child_.push_back(-1);
            plan.n_children_.push_back(0);
        }
        plan.proposed_.push_back({children[i].token, logp, children[i].logq});
        plan.proposed_node_.push_back(node);
        plan.level_.push_back(node);
    }
    double a[AcceptanceModel::n_ranks_max];
    const int n_known = std::min(n, AcceptanceModel::n_ranks_max);
    acceptance_.predict(plan.kind_, plan.text_, depth, plan.proposed_.data() + first, n_known, a);
    const int d = std::min(depth, SequencePlan::n_depths) - 1;
    const float rate = std::max(0.1f, 1.0f / (float)(++plan.n_seen_[d] + 1)) * std::max(plan.p_[parent], 0.1f);
    for (int i = 0; i < n_known; ++i) plan.mean_p_[d][i] += rate * ((float)a[i] - plan.mean_p_[d][i]);
    blend(plan, parent, first, a, n_known);
    expect_like(plan, d);
}

// Deeper levels are expected to be like this one until they were looked at, and a little more so as long as they are
// not: a level that was never tried, or once in a bad moment, would never be tried again.
void Planner::expect_like(SequencePlan & plan, int d) {
    for (int deeper = d + 1; deeper < SequencePlan::n_depths; ++deeper) {
        const float pull = plan.n_seen_[deeper] == 0 ? 1.0f : revisit;
        for (int r = 0; r < SequencePlan::n_ranks; ++r) {
            plan.mean_p_[deeper][r] += pull * (plan.mean_p_[d][r] - plan.mean_p_[deeper][r]);
        }
        if (plan.n_seen_[deeper] > 0) return;
    }
}

// --- the next level ------------------------------------------------------------------------------------------------

void Planner::next_frontier_auto(SequencePlan & plan) {
    plan.frontier_.clear();
    const bool is_probe = plan.decision_.mode == Mode::probe;
    const int n_levels_max = is_probe ? std::min(n_probe_levels, plan.depth_max_) : plan.depth_max_;
    if ((int)plan.decision_.levels.size() >= n_levels_max) return;

    // a node below the price of the cheapest verification row would not be verified, nor would its children
    find_candidates(plan, is_probe ? 0.0 : lambda(plan) * plan.prices_.ms_per_node());
    const int n_rows_left = plan.limits_.n_draft_rows - plan.n_draft_rows_;
    const int n_wide = plan.limits_.n_leaves > 1 ? options_.width : 1;
    const int n_most = std::min({(int)nodes_.size(), n_wide, n_rows_left});
    if (n_most < 1) return;
    std::partial_sort(nodes_.begin(), nodes_.begin() + n_most, nodes_.end(),
                      [&](int a, int b) { return plan.p_[a] != plan.p_[b] ? plan.p_[a] > plan.p_[b] : a < b; });
    const int n = is_probe ? 1 : best_width(plan, n_most);
    plan.frontier_.assign(nodes_.begin(), nodes_.begin() + n);
}

// nodes_: nodes of the last level that may have children
void Planner::find_candidates(const SequencePlan & plan, double p_least) {
    const std::vector<Token> & ends = options_.end_tokens;
    nodes_.clear();
    for (int i : plan.level_) {
        const bool is_end = std::find(ends.begin(), ends.end(), plan.pool_.token[i]) != ends.end();
        if (!is_end && plan.p_[i] >= p_least) nodes_.push_back(i);
    }
}

// How many of the candidates nodes_[0..n) to expand; 0 = another level does not pay.
int Planner::best_width(const SequencePlan & plan, int n_candidates) {
    double best = plan.prices_.best(plan.best_p_, lambda(plan), ms_left()).value;
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
    const double price = lambda(plan), least = price * plan.prices_.ms_per_node();
    const int n_wide = plan.limits_.n_leaves > 1 ? options_.width : 1;
    const int n_levels = (int)plan.decision_.levels.size();
    front_.clear();
    for (int i = 0; i < width; ++i) front_.push_back(plan.p_[nodes_[i]]);
    merged_ = plan.best_p_;
    double ms = 0.0, best = -1e9;
    for (int ahead = 1; ahead <= n_ahead && n_levels + ahead <= plan.depth_max_ && !front_.empty(); ++ahead) {
        ms += costs_.level((int)front_.size());
        const auto & means = plan.mean_p_[std::min(n_levels + ahead, SequencePlan::n_depths) - 1];
        level_p_.clear();
        for (float p : front_) {
            for (int r = 0; r < plan.decision_.k; ++r) level_p_.push_back(p * means[r]);
        }
        merge_best(merged_, level_p_, plan.prices_.n_nodes_max());
        best = std::max(best, plan.prices_.best(merged_, price, ms_left() - ms).value - price * ms);
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
    plan.frontier_.clear();
    if ((int)plan.decision_.levels.size() >= plan.depth_max_) return;
    nodes_ = plan.level_;
    const auto & logp = plan.pool_.logp;
    std::stable_sort(nodes_.begin(), nodes_.end(), [&](int a, int b) { return logp[a] > logp[b]; });
    const int n_rows_left = plan.limits_.n_draft_rows - plan.n_draft_rows_;
    const int n = std::min({(int)nodes_.size(), plan.decision_.k, n_rows_left});
    if (n > 0) plan.frontier_.assign(nodes_.begin(), nodes_.begin() + n);
}

void Planner::next_frontier_replay(SequencePlan & plan) {
    const size_t level = plan.decision_.levels.size();
    plan.frontier_.clear();
    if (level >= plan.logged().levels.size()) return;
    for (int32_t node : plan.logged().levels[level]) {
        if (std::find(plan.level_.begin(), plan.level_.end(), node) == plan.level_.end()) {
            fail(ErrorKind::value,
                 "plan log: round %zu expands node %d at level %zu, which is none of the %zu nodes drafted there; the "
                 "log belongs to another run",
                 plan.n_replayed_, node, level + 1, plan.level_.size());
        }
    }
    plan.frontier_ = plan.logged().levels[level];
}

}  // namespace eaglecpp
