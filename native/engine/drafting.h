// SPDX-License-Identifier: MIT
// Collects the drafts of a round. Takes the tokens that the planner requests from the text, the drafter and the
// grammar.
#pragma once

#include <vector>

#include "algo/planner.h"
#include "algo/windows.h"
#include "engine/models.h"
#include "engine/sequence.h"

namespace eaglecpp {

class Drafting {
  public:
    // draft_window: EngineOptions::draft_window. `models` and `planner` must outlive this object.
    Drafting(int draft_window, Models & models, Planner & planner)
        : target_(*models.target),
          drafter_(models.drafter.get()),
          traits_(models.draft_traits),
          planner_(planner),
          windows_(draft_window, traits_.can_narrow) {}

    // Sets the window of the drafter's next rows. Call it before a prompt's rows are committed. plan() also calls it.
    void set_window(Sequence & s);

    // Decides for each conversation whether it drafts in this round, and from which source.
    void plan(const std::vector<Sequence *> & sequences);
    // Fills the draft pools in the plans of these conversations. The planner later chooses from these pools.
    void draft(const std::vector<Sequence *> & sequences);

    // Reports the result of a round. The target compared n_tried drafts and accepted n_accepted of them.
    void learn(const Sequence & s, int n_tried, int n_accepted);

  private:
    void plan(Sequence & s);
    void grow(std::vector<Sequence *> growing);
    int n_steps(const Sequence & s) const;
    void propose_step(Sequence & s, bool was_run);
    TextDraft propose_text(Sequence & s);
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
