// SPDX-License-Identifier: MIT
// The drafts of a round: the text, the drafter and the grammar are asked as the planner wants it.
#pragma once

#include <vector>

#include "algo/planner.h"
#include "algo/windows.h"
#include "engine/models.h"
#include "engine/sequence.h"

namespace eaglecpp {

class Drafting {
  public:
    // both outlive this
    Drafting(Models & models, Planner & planner)
        : target_(*models.target), drafter_(models.drafter.get()), traits_(models.draft_traits), planner_(planner) {}

    // Whether each conversation drafts in this round, and from what.
    void plan(const std::vector<Sequence *> & sequences);
    // Fills the pools of these conversations' plans; the planner chooses from them.
    void draft(const std::vector<Sequence *> & sequences);

    // How many drafts of the round had their turn, and were accepted.
    void learn(const Sequence & s, int n_tried, int n_accepted);

  private:
    void plan(Sequence & s);
    void grow(std::vector<Sequence *> growing);
    int n_steps(const Sequence & s) const;
    void extend(const std::vector<Sequence *> & growing);
    std::vector<std::vector<Candidate>> propose_level(Sequence & s, bool is_made);
    TextDraft propose_text(Sequence & s, const PlanLimits & limits);
    void force(Sequence & s);
    std::vector<Candidate> propose(Sequence & s, int row, Pos pos) const;
    void drop_forbidden(Sequence & s, const Tokens & path, std::vector<Candidate> & children);

    Target & target_;
    Drafter * drafter_;
    const DraftTraits & traits_;
    Planner & planner_;
    DraftWindows windows_;
};

}  // namespace eaglecpp
