// SPDX-License-Identifier: MIT
// Planner: what the text itself proposes, alone and in one tree with the drafter's nodes.
#include <algorithm>
#include <cmath>
#include <functional>

#include "algo/planner.h"

namespace eaglecpp {

void Planner::take_text(SequencePlan & plan, const TextDraft * draft) {
    plan.round.text_value = 0.0;
    plan.round.text_draft.nodes.clear();
    plan.round.text_a.clear();
    if (!draft || draft->empty()) return;
    plan.round.text_draft = *draft;
    text_acceptance_.predict(plan.text.kind, plan.text.hits, plan.round.text_draft, plan.round.text_a);
}

// Tokens that verifying the proposals of the text alone would bring beyond the price of the time; 0 = it does not pay.
double Planner::text_value(SequencePlan & plan) {
    if (plan.round.text_draft.empty() || !costs_.knows_plain()) return 0.0;
    const double price = lambda(plan);
    // chances along the paths, in one chain where only chains are allowed
    front_.resize(plan.round.text_a.size());
    level_p_.clear();
    int last = -1;
    for (int i = 0; i < plan.round.text_draft.size(); ++i) {
        const int parent = plan.round.text_draft.nodes[i].parent;
        front_[i] = plan.round.text_a[i] * (parent < 0 ? 1.0f : front_[parent]);
        if (plan.round.limits.n_leaves > 1 || parent == last) level_p_.push_back(front_[i]), last = i;
    }
    std::sort(level_p_.begin(), level_p_.end(), std::greater<float>());
    set_prices(plan);
    // most proposals are far below the price of a row
    if (level_p_[0] < price * plan.round.prices.ms_per_node()) return 0.0;
    const Offer offer = plan.round.prices.best(level_p_, price, ms_left(plan));
    return offer.n > 0 ? std::max(0.0, offer.value - price * costs_.host()) : 0.0;
}

// A round without the drafter.
void Planner::start_text(SequencePlan & plan, Reason reason, int k, int reach) {
    start(plan, Mode::draft, reason, k);
    plan.round.frontier.clear();
    add_text(plan, k, reach);
}

// The first nodes of a fresh pool.
void Planner::add_text(SequencePlan & plan, int k, int reach) {
    PlanRound & round = plan.round;
    round.pool.add_text(round.text_draft, round.text_a, k, reach, options_.end_tokens);
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

}  // namespace eaglecpp
