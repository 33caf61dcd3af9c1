// SPDX-License-Identifier: MIT
// Planner: what the text itself proposes, alone and in one tree with the drafter's nodes.
#include <algorithm>
#include <cmath>
#include <functional>

#include "algo/planner.h"

namespace eaglecpp {

namespace {
constexpr float a_least = 1e-4f;
}  // namespace

void Planner::take_text(SequencePlan & plan, const TextDraft * draft) {
    plan.text_value_ = 0.0;
    plan.text_draft_.nodes.clear();
    plan.text_a_.clear();
    if (!draft || draft->empty()) return;
    plan.text_draft_ = *draft;
    text_acceptance_.predict(plan.kind_, plan.hits_, plan.text_draft_, plan.text_a_);
}

// Tokens that verifying the proposals of the text alone would bring beyond the price of the time; 0 = it does not pay.
double Planner::text_value(SequencePlan & plan) {
    if (plan.text_draft_.empty() || !costs_.knows_plain()) return 0.0;
    const double price = lambda(plan);
    // chances along the paths, in one chain where only chains are allowed
    front_.resize(plan.text_a_.size());
    level_p_.clear();
    int last = -1;
    for (int i = 0; i < plan.text_draft_.size(); ++i) {
        const int parent = plan.text_draft_.nodes[i].parent;
        front_[i] = plan.text_a_[i] * (parent < 0 ? 1.0f : front_[parent]);
        if (plan.limits_.n_leaves > 1 || parent == last) level_p_.push_back(front_[i]), last = i;
    }
    std::sort(level_p_.begin(), level_p_.end(), std::greater<float>());
    set_prices(plan);
    // most proposals are far below the price of a row
    if (level_p_[0] < price * plan.prices_.ms_per_node()) return 0.0;
    const Offer offer = plan.prices_.best(level_p_, price, ms_left(plan));
    return offer.n > 0 ? std::max(0.0, offer.value - price * costs_.host()) : 0.0;
}

// A round without the drafter.
void Planner::start_text(SequencePlan & plan, Reason reason, int k, int reach) {
    start(plan, Mode::draft, reason, k);
    plan.frontier_.clear();
    add_text(plan, k, reach);
}

// The first nodes of a fresh pool: k children per node at most (0 = any number), none deeper than `reach`.
void Planner::add_text(SequencePlan & plan, int k, int reach) {
    const std::vector<Token> & ends = options_.end_tokens;
    const auto is_end = [&](Token token) { return std::find(ends.begin(), ends.end(), token) != ends.end(); };
    number_.assign(plan.text_draft_.size(), -1);
    plan.a_text_.assign(1, 1.0f);
    for (int i = 0; i < plan.text_draft_.size(); ++i) {
        const TextDraft::Node & node = plan.text_draft_.nodes[i];
        const int parent = node.parent < 0 ? 0 : number_[node.parent];
        if (parent < 0 || plan.pool_.depth[parent] >= reach) continue;
        if (parent > 0 && is_end(plan.pool_.token[parent])) continue;
        const auto & parents = plan.pool_.parent;
        if (k > 0 && std::count(parents.begin() + 1, parents.end(), parent) >= k) continue;
        const float a = plan.text_a_[i];
        number_[i] = plan.pool_.add(node.token, parent, std::log(std::max(a, a_least)));
        plan.a_.push_back(a);
        plan.a_text_.push_back(a);
        plan.p_.push_back(plan.p_[parent] * a);
        plan.is_text_.push_back(1);
        plan.first_child_.push_back(-1);
        plan.n_children_.push_back(0);
    }
    plan.decision_.n_text = plan.pool_.n_draft();
    plan.decision_.reach = reach;
    plan.best_p_.assign(plan.p_.begin() + 1, plan.p_.end());
    std::sort(plan.best_p_.begin(), plan.best_p_.end(), std::greater<float>());
    const size_t n_most = std::max(plan.prices_.n_nodes_max(), 0);
    if (plan.best_p_.size() > n_most) plan.best_p_.resize(n_most);
}

int Planner::text_child(const SequencePlan & plan, int32_t parent, Token token) {
    for (int i = parent + 1; i <= plan.decision_.n_text; ++i) {
        if (plan.pool_.parent[i] == parent && plan.pool_.token[i] == token) return i;
    }
    return -1;
}

// The chances of the children of `parent` now that the drafter proposed n_known of them with chances a. What both
// propose is likelier than either says; what only the text proposes is less likely than it seemed, and shares the one
// token that will come.
void Planner::blend(SequencePlan & plan, int32_t parent, int first_proposed, const double * a, int n_known) {
    const int n = plan.n_children_[parent];
    double sum = 0.0;
    for (int i = 0; i < n; ++i) {
        const int node = plan.proposed_node_[first_proposed + i];
        const double own = i < n_known ? a[i] : 0.0;
        plan.a_[node] = plan.is_text_[node] ? (float)(1.0 - (1.0 - own) * (1.0 - plan.a_[node])) : (float)own;
        plan.is_text_[node] = 0;
        sum += plan.a_[node];
    }
    const int n_text = plan.decision_.n_text;
    const auto is_rival = [&](int i) { return plan.pool_.parent[i] == parent && plan.is_text_[i]; };
    const float share = (float)plan.contradiction_.share();
    for (int i = parent + 1; i <= n_text; ++i) {
        if (!is_rival(i)) continue;
        plan.a_[i] *= share;
        sum += plan.a_[i];
    }
    const float scale = sum > 1.0 ? (float)(1.0 / sum) : 1.0f;
    for (int i = 0; i < n; ++i) {
        const int node = plan.proposed_node_[first_proposed + i];
        plan.a_[node] *= scale;
        plan.p_[node] = plan.p_[parent] * plan.a_[node];
    }
    for (int i = parent + 1; i <= n_text; ++i) {
        if (is_rival(i)) plan.a_[i] *= scale;
        plan.p_[i] = plan.p_[plan.pool_.parent[i]] * plan.a_[i];
    }
}

std::string Planner::acceptance_to_text(const std::string & key) const {
    return acceptance_.to_text(key) + text_acceptance_.to_text(key);
}

bool Planner::acceptance_from_text(const std::string & text, const std::string & key) {
    const size_t at = text.find(TextAcceptance::state_kind);
    const bool fits = acceptance_.from_text(text.substr(0, at), key);
    return (at == std::string::npos || text_acceptance_.from_text(text.substr(at), key)) && fits;
}

}  // namespace eaglecpp
