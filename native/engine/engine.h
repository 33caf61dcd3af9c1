// SPDX-License-Identifier: MIT
// The only loop. Owns target, drafter and sequences; a step runs one slice of prefill or one round of draft, verify,
// match and commit for each sequence it is given. Steps are atomic: after an error the sequences hold what they held
// before the step, so a generation can be ended or continued at any time between steps. An exception that is not ours
// leaves the engine broken: nobody knows what llama.cpp or a driver left half done.
//
// One thread at a time: a call during another one fails with Error(busy). After Error(broken) only closing is left.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "algo/planner.h"
#include "engine/options.h"
#include "engine/sequence.h"
#include "target/target.h"

namespace eaglecpp {

struct TokenLogprobs {
    float logprob = 0.0f;
    std::vector<Candidate> top;  // best first
};

struct StepResult {
    int sequence = 0;
    std::string phase;  // "prefill" | "decode"
    int n_prompt_done = 0;
    int n_prompt = 0;
    Tokens tokens;
    std::vector<bool> accepted;  // tokens[i] was drafted
    std::vector<TokenLogprobs> logprobs;
    std::string finish;  // "" | "stop" | "length"
};

class Engine {
  public:
    // Error(not_found | gguf | mismatch | unsupported | out_of_memory | value)
    explicit Engine(const EngineOptions & options);

    // a call of another thread is under way
    bool in_use() const { return in_use_; }

    const Target & target() const { return *target_; }
    const Drafter * drafter() const { return drafter_.get(); }
    const DraftFile * draft_file() const { return draft_file_.get(); }

    // a free conversation; Error(value) when all n_sequences are open
    int open_sequence();
    void close_sequence(int id);

    // Starts a generation; returns how many prompt tokens were found in the cache. Ends one under way.
    // Error(context_full | value | grammar)
    int begin(int id, const Tokens & prompt, const GenerateParams & params);

    std::vector<StepResult> step(const std::vector<int> & ids);

    void end(int id);
    void clear(int id);

    const Sequence & sequence(int id) const;

    // what was learned about this machine and drafter
    const Planner & planner() const { return planner_; }
    Planner & planner() { return planner_; }

    // bytes the drafter holds beyond its weights
    size_t draft_bytes(int id) const;

  private:
    class Use;  // the busy and broken checks of a call

    struct Round {
        Sequence * seq;
        DraftTree tree;
        int row;  // of the root in the batch
    };

    template <typename F, typename Restore>
    auto attempt(F && f, Restore && restore) -> decltype(f());

    Sequence & get(int id);
    std::vector<StepResult> advance(const std::vector<int> & ids);
    int reuse(Sequence & s, const Tokens & prompt);
    StepResult prefill(Sequence & s);
    void commit_prefilled(Sequence & s, int n_rows);
    void check_strategy(const Strategy & strategy) const;
    void begin_plan(Sequence & s);
    void decode(const std::vector<Sequence *> & sequences, std::vector<StepResult> & results);
    void draft(Sequence & s);
    void grow(Sequence & s);
    double verify(std::vector<Round> & rounds);
    StepResult finish_round(const Round & round);
    Token synthetic(const Round & round, int node, Token sampled) const;
    void commit_round(Sequence & s, const Round & round, const MatchResult & result);
    StepResult result_of(const Sequence & s, const char * phase) const;
    void roll_back(Sequence & s);
    void forget(Sequence & s);

    std::unique_ptr<DraftFile> draft_file_;
    std::unique_ptr<Target> target_;
    std::unique_ptr<Drafter> drafter_;
    std::map<int, Sequence> sequences_;
    Planner planner_;
    TargetBatch batch_;
    std::atomic<bool> in_use_{false};
    bool is_broken_ = false;
};

}  // namespace eaglecpp
