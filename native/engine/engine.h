// SPDX-License-Identifier: MIT
// The only loop. Owns target, drafter and sequences; a step runs one slice of prefill or one round of draft, verify,
// match and commit for each sequence it is given. A prompt that begins like another conversation's text takes over what
// was computed for that. Steps are atomic: after an error the sequences hold what they held
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
#include "engine/machine_load.h"
#include "engine/options.h"
#include "engine/sequence.h"
#include "engine/thread_policy.h"
#include "target/exact_rows.h"
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
    // why the drafter is not where it would best be; "" = it is, or there is none
    const std::string & why_placed() const { return why_placed_; }
    const DraftFile * draft_file() const { return draft_file_.get(); }

    // a free conversation; Error(value) when all n_sequences are open
    int open_sequence();
    void close_sequence(int id);

    // Starts a generation; returns how many prompt tokens were found in the cache. Ends one under way.
    // Error(context_full | value | grammar)
    int begin(int id, const Tokens & prompt, const GenerateParams & params);

    // A slice of the prompt or a round of each; a result for each, in no particular order. Where some generate, prompts
    // share their batch if that changes no bits: then the slices are smaller, and of several prompts the last ones may
    // have to wait.
    std::vector<StepResult> step(const std::vector<int> & ids);

    // `n_taken`: tokens of the answer that were wanted; those that a round gave beyond them are rolled back. < 0: all
    void end(int id, int n_taken = -1);
    void clear(int id);

    const Sequence & sequence(int id) const;

    // Conversations can leave the caches and come back to them, at any place: `park` copies what one without a
    // generation holds, `unpark` puts it in place of what another one holds; false where there is no room, then that
    // one is empty.
    bool can_park() const { return target_->can_save_rows(); }
    ParkedSequence park(int id);
    bool unpark(int id, const ParkedSequence & parked);

    // what was learned about this machine and drafter
    const Planner & planner() const { return planner_; }
    Planner & planner() { return planner_; }

    // At which numbers of rows a batch gives every row the bits it has alone: measured now, before any conversation is
    // open, or as measured before with the same files, build, device and options. Until then one row is.
    // Error(value) when a conversation is open
    ExactRows measure_exact_rows();
    void set_exact_rows(const RowCounts & counts);
    const RowCounts & exact_rows() const { return exact_rows_; }

    // threads that decoding has now
    int n_threads() const { return threads_.level(ThreadPolicy::Kind::decode); }

    // bytes the drafter holds beyond its weights
    size_t draft_bytes(int id) const;

    // rounds may draft: there is a drafter, or the text itself is drafted from
    bool can_draft() const { return drafter_ || drafts_text_; }
    bool drafts_text() const { return drafts_text_; }

  private:
    class Use;  // the busy and broken checks of a call

    struct Round {
        Sequence * seq;
        DraftTree tree;
        int row;  // of the root in the batch
    };

    // prompt rows of a batch, from the conversation's n_past on
    struct Slice {
        Sequence * seq;
        int row;  // the first one in the batch
        int n_rows;

        bool is_last() const { return seq->n_past + n_rows == seq->n_prompt; }
    };

    template <typename F, typename Restore>
    auto attempt(F && f, Restore && restore) -> decltype(f());

    Sequence & get(int id);
    std::vector<StepResult> advance(const std::vector<int> & ids);
    int reuse(Sequence & s, const Tokens & prompt);
    void reuse_draft(Sequence & s, int n_keep, bool is_same_next);
    void keep(Sequence & s, int n);
    StepResult prefill(Sequence & s);
    static int prompt_end(const Sequence & s);
    void add_rows(const Slice & slice);
    StepResult finish_slice(const Slice & slice, double start_ms);
    void commit_pending(Sequence & s);
    void commit_prefilled(Sequence & s, int row, int n_rows);
    bool cuts_freely(const Sequence & s, int n_rows) const;
    bool can_share(const std::vector<Sequence *> & reading, const std::vector<Sequence *> & decoding) const;
    std::vector<Slice> cut_slices(const std::vector<Sequence *> & reading) const;
    bool can_adopt(const Sequence & s) const;
    bool waits_for(const Sequence & s, const std::vector<Sequence *> & reading) const;
    void adopt(Sequence & s);
    void check_strategy(const Strategy & strategy) const;
    void check_text_options(const EngineOptions & options);
    void set_planner();
    void count_text(Sequence & s, const MatchResult & result);
    void begin_plan(Sequence & s, Exactness exactness);
    void decode(const std::vector<Sequence *> & sequences, const std::vector<Sequence *> & reading,
                std::vector<StepResult> & results);
    void draft(const std::vector<Sequence *> & sequences);
    void decide(Sequence & s);
    void grow(std::vector<Sequence *> growing);
    void extend(const std::vector<Sequence *> & growing, std::map<Sequence *, std::vector<int>> & rows_of);
    std::vector<std::vector<Candidate>> propose_level(Sequence & s);
    bool is_grammar_cheap(const Sequence & s) const;
    void drop_forbidden(Sequence & s, const Tokens & path, std::vector<Candidate> & children);
    const TextDraft & propose_text(Sequence & s, const PlanLimits & limits);
    double verify(std::vector<Round> & rounds, const std::vector<Sequence *> & reading, std::vector<Slice> & slices);
    void run(ThreadPolicy::Kind kind);
    void set_threads(const EngineOptions & options);
    void add_lost(const Sequence & s, int n);
    void run_lost(Sequence & s);
    void note_exactness(const std::vector<Round> & rounds);
    void note_order();
    StepResult finish_round(const Round & round);
    Token synthetic(const Round & round, int node, Token sampled) const;
    void commit_round(Sequence & s, const Round & round, const MatchResult & result);
    StepResult result_of(const Sequence & s, const char * phase) const;
    void roll_back(Sequence & s);
    void forget(Sequence & s);

    std::unique_ptr<DraftFile> draft_file_;
    std::unique_ptr<Target> target_;
    std::unique_ptr<Drafter> drafter_;
    std::string why_placed_;
    std::map<int, Sequence> sequences_;
    Planner planner_;
    TargetBatch batch_;
    ThreadPolicy threads_;
    MachineLoad load_;
    RowCounts exact_rows_;
    TextDraft text_draft_;  // what a grammar leaves of a proposal
    bool drafts_text_ = false;
    int n_text_memory_ = 0;
    Exactness exactness_ = Exactness::off;
    int n_order_lost_ = 0;
    std::atomic<bool> in_use_{false};
    bool is_broken_ = false;
};

}  // namespace eaglecpp
