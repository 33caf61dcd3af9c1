// SPDX-License-Identifier: MIT
// The entry point to target, drafter and conversations, which it owns: begins and ends generations, and steps them
// (Rounds). A prompt that begins like another conversation's text takes over what was computed for that. Steps are
// atomic: after an error the sequences hold what they held before the step, so a generation can be ended or continued
// at any time between steps. An exception that is not ours leaves the engine broken, because what llama.cpp or a driver
// left half done cannot be known.
//
// One thread at a time: a call during another one fails with Error(busy). After Error(broken) only closing is left.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "algo/planner.h"
#include "engine/conversations.h"
#include "engine/images.h"
#include "engine/models.h"
#include "engine/options.h"
#include "engine/rounds.h"
#include "target/exact_rows.h"

namespace eaglecpp {

class Engine {
  public:
    // Error(not_found | gguf | mismatch | unsupported | out_of_memory | value)
    explicit Engine(const EngineOptions & options);

    // Before the engine is freed: from now on every call fails as one that comes during another does. Error(busy) while
    // a call of another thread is under way. There is nothing between looking and taking.
    void retire();

    const Target & target() const { return *models_.target; }
    const Drafter * drafter() const { return models_.drafter.get(); }
    const DraftTraits & draft_traits() const { return models_.draft_traits; }
    // why the drafter is not where it would best be; "" = it is, or there is none
    const std::string & why_placed() const { return models_.why_placed; }
    const DraftFile * draft_file() const { return models_.draft_file.get(); }

    // a free conversation; Error(value) when all n_sequences are open
    int open_sequence();
    void close_sequence(int id);

    // Starts a generation; returns how many prompt tokens were found in the cache. Ends one under way.
    // Error(context_full | value | grammar)
    // `sampler`: of `make_sampler` with the same parameters; made here without one.
    int begin(int id, const Tokens & prompt, const GenerateParams & params, std::unique_ptr<Sampler> sampler = nullptr);

    // What of a generation costs time before it begins: DRY looks through the vocabulary, a grammar is parsed. Safe in
    // any thread at any time. Error(value | grammar)
    std::unique_ptr<Sampler> make_sampler(const GenerateParams & params) const;

    // Runs a slice of the prompt or a round for each conversation; returns a result for each, in no particular order.
    // While some conversations generate, prompts share their batch if that changes no bits: the slices are then
    // smaller, and if there are several prompts the last ones may have to wait.
    // With `for_ms`, rounds follow each other until so many milliseconds have passed, as long as all conversations
    // generate; each result is then of several rounds. The error of a later round is thrown by the next call.
    std::vector<StepResult> step(const std::vector<int> & ids, double for_ms = 0.0);

    // `n_taken`: how many tokens of the answer are kept; any that a round gave beyond them are rolled back. < 0: all
    void end(int id, int n_taken = -1);
    void clear(int id);

    const Sequence & sequence(int id) const { return conversations_.get(id); }

    // Conversations can be swapped out and restored under any id: `save` copies what a conversation without a
    // generation holds; `restore` puts such a copy in place of what conversation `id` holds and returns false if there
    // is no room, in which case that conversation is empty.
    bool can_save() const { return target().can_save_rows(); }
    SavedSequence save(int id);
    // Error(value): the copy does not fit this engine
    bool restore(int id, const SavedSequence & saved);

    // Images that prompts may have: their rows stand in them by the ids that `add` gives.
    Images & images() { return images_; }

    // what was learned about this machine and drafter
    const Planner & planner() const { return planner_; }
    Planner & planner() { return planner_; }

    // The numbers of rows at which a batch gives every row the bits it has alone: measured now, or set from an earlier
    // measurement with the same files, build, device and options. Until one of these is called, only a single row
    // counts as exact. A conversation that is open is forgotten: `id`, or else there may be none.
    // Error(value) when another conversation is open, or generates
    ExactRows measure_exact_rows(int id = -1);
    void set_exact_rows(const RowCounts & counts);
    const RowCounts & exact_rows() const { return exact_rows_; }

    // threads that decoding has now
    int n_threads() const { return rounds_.n_threads(); }

    // whether rounds may draft: there is a drafter, or the text itself is drafted from
    bool can_draft() const { return models_.can_draft(); }
    bool drafts_text() const { return models_.drafts_text; }
    // a grammar's forced tokens, without anything else to draft from
    bool drafts_forms_alone() const { return models_.drafts_forms && !can_draft(); }

  private:
    class Use;  // the busy and broken checks of a call

    template <typename Restore>
    void recover(Restore && restore);
    template <typename F, typename Restore>
    auto attempt(F && f, Restore && restore) -> decltype(f());

    void check_strategy(const Strategy & strategy) const;
    void check_saved(const Sequence & s, const SavedSequence & saved) const;
    void begin_plan(Sequence & s, Exactness exactness);
    std::vector<std::shared_ptr<const Image>> images_of(const Tokens & prompt, std::vector<ImageRows> & rows);

    Exactness exactness_;
    Models models_;
    Planner planner_;
    Conversations conversations_;
    Images images_{256u << 20};
    RowCounts exact_rows_;
    bool knows_exact_rows_ = false;
    Rounds rounds_;
    std::atomic<bool> in_use_{false};
    std::string why_broken_;  // what failed inside; empty = nothing has
    // of a round that followed others in one call, for the next call that steps the same conversations
    struct LateError {
        std::vector<int> ids;
        std::exception_ptr error;
    } late_error_;
};

}  // namespace eaglecpp
