// SPDX-License-Identifier: MIT
// The main loop. For each given conversation, a step runs either a slice of its prompt or a round: plan, draft, verify,
// accept, commit. This class does not handle errors. After an exception, the engine restores the conversations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "algo/costs.h"
#include "algo/planner.h"
#include "algo/tree.h"
#include "base/error.h"
#include "engine/conversations.h"
#include "engine/drafting.h"
#include "engine/machine_load.h"
#include "engine/thread_policy.h"
#include "target/exact_rows.h"

namespace eaglecpp {

struct TokenLogprobs {
    float logprob = 0.0f;
    std::vector<Candidate> top;  // likeliest tokens, best first
};

struct StepResult {
    int sequence = 0;
    std::string phase;  // "prefill" | "decode"
    int n_prompt_done = 0;
    int n_prompt = 0;
    Tokens tokens;
    std::vector<bool> accepted;  // accepted[i]: tokens[i] was drafted
    std::vector<TokenLogprobs> logprobs;
    std::string finish;  // "" | "stop" | "length"
    // Error that ended only this conversation's generation. `tokens` is then empty.
    std::optional<Error> error;
};

class Rounds {
  public:
    // All arguments except the options must outlive this object.
    Rounds(const EngineOptions & options, Models & models, Planner & planner, Conversations & conversations,
           const RowCounts & exact_rows);

    // Runs one step; see Engine::step.
    std::vector<StepResult> step(const std::vector<Sequence *> & sequences);

    // Returns true if this conversation may copy rows of another conversation.
    bool can_adopt(const Sequence & s) const;

    // Runs accepted rows again that the target no longer holds. Uses exact batches.
    void replay(Sequence & s);

    // Continues a measurement of exact numbers of rows. Uses the current best number of
    // threads, which is below the maximum on a busy machine.
    void measure_exact_rows(const SeqRange & range, Progress & progress, ExactRows & rows);

    // Returns the current number of threads for decoding.
    int n_threads() const { return threads_.n_threads(ThreadPolicy::Kind::decode); }

  private:
    void sort(const std::vector<Sequence *> & sequences, std::vector<Sequence *> & reading,
              std::vector<Sequence *> & decoding, std::vector<StepResult> & results);
    bool cuts_freely(const Sequence & s, int n_rows) const;
    // Returns true if the prompts of `reading` may share the batch of the rounds of `decoding`.
    bool can_share(const std::vector<Sequence *> & reading, const std::vector<Sequence *> & decoding) const;
    // Cuts slices of prompts to add to a batch that already has n_rows rows of rounds. Returns the conversations with a
    // slice, in the order of `reading`.
    std::vector<Sequence *> cut(const std::vector<Sequence *> & reading, int n_rows) const;
    // Returns true if another conversation in `reading` is about to compute rows that `s` could copy.
    bool waits_for(const Sequence & s, const std::vector<Sequence *> & reading) const;
    StepResult result_of(const Sequence & s, const char * phase) const;
    StepResult prefill(Sequence & s);
    void add_rows(Sequence & s);
    StepResult finish_slice(Sequence & s, double start_ms);
    void commit_prefilled(Sequence & s, int row, int n_rows);
    void draft(const std::vector<Sequence *> & sequences, bool is_timed);
    double verify(const std::vector<Sequence *> & decoding, const std::vector<Sequence *> & reading,
                  std::vector<Sequence *> & slices);
    // Runs the batch with the current best number of threads.
    void run(TargetBatch & batch, ThreadPolicy::Kind kind);
    void add_replay(const Sequence & s, int n);
    void note_exactness(const std::vector<Sequence *> & decoding);
    StepResult finish_round(Sequence & s);
    MatchResult accept(Sequence & s, StepResult & out);
    std::optional<Choice> choose(Sequence & s, int node, StepResult & out);
    void count_text(Sequence & s, const MatchResult & result);
    Token synthetic(const Sequence & s, int node, Token sampled) const;
    void commit(Sequence & s, const MatchResult & result);

    Target & target_;
    const Models & models_;
    bool is_planned_ = false;  // the planner plans the current round
    Planner & planner_;
    Conversations & conversations_;
    const RowCounts & exact_rows_;
    Drafting drafting_;
    TargetBatch batch_;
    ThreadPolicy threads_;
    MachineLoad load_;
};

}  // namespace eaglecpp
