// SPDX-License-Identifier: MIT
// The engine owns target, drafter and conversations. It begins, steps and ends generations. A prompt that starts like
// another conversation's text reuses the rows of that conversation.
//
// Steps are atomic: after an error, the sequences are in the state before the step. So a generation can be ended or
// continued between any two steps. An exception that is not an Error leaves the engine broken, because the state of
// llama.cpp or of a driver is then unknown. A broken engine can only be closed.
//
// Only one thread may use the engine at a time. A call while another call runs fails with Error(busy).
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
    // Opens target and drafter. Error(not_found | gguf | mismatch | unsupported | out_of_memory | value)
    explicit Engine(const EngineOptions & options);

    // Makes every later call fail with Error(busy). Call this function before freeing the engine. It raises Error(busy)
    // itself if a thread is inside a call. The check is atomic.
    void retire();

    const Target & target() const { return *models_.target; }
    const Drafter * drafter() const { return models_.drafter.get(); }
    const Models & models() const { return models_; }

    // Opens a conversation and returns its id. Error(value) if all n_sequences conversations are open.
    int open_sequence();
    void close_sequence(int id);

    // Starts a generation in conversation `id` and returns the number of prompt tokens found in the cache. If the
    // conversation's previous generation still runs, ends that generation. `sampler` must come from make_sampler() with
    // the same parameters, or be null: begin() then makes a sampler. Error(context_full | value | grammar)
    int begin(int id, const Tokens & prompt, const GenerateParams & params, std::unique_ptr<Sampler> sampler = nullptr);

    // Makes a sampler, which is the slow work before a generation: DRY searches the vocabulary, and grammars are
    // parsed. Thread-safe. Error(value | grammar)
    std::unique_ptr<Sampler> make_sampler(const GenerateParams & params) const;

    // Runs a slice of the prompt or a round for each conversation. Returns one result per conversation, in no
    // particular order. Prompts share the batch of generating conversations if this changes no bits. Then their slices
    // are smaller, and the last of several prompts may have to wait. With `for_ms`, runs rounds until that many
    // milliseconds have passed, as long as all conversations generate. The results are then sums over these rounds. If
    // a later round fails, the next call of step() throws its error.
    std::vector<StepResult> step(const std::vector<int> & ids, double for_ms = 0.0);

    // Ends the generation of conversation `id`. n_taken: number of answer tokens to keep; < 0 keeps all. Tokens of the
    // last step beyond n_taken are rolled back, and the counters of its later rounds as well.
    void end(int id, int n_taken = -1);
    void clear(int id);

    const Sequence & sequence(int id) const { return conversations_.get(id); }

    // Swaps conversations out and back. save() copies the state of a conversation that is not generating. restore()
    // replaces the state of conversation `id` by such a copy, which may come from another conversation. If the cache
    // has no room, restore() returns false and the conversation is empty. Error(value) if the copy does not come from a
    // matching engine.
    bool can_save() const { return target().can_save_rows(); }
    SavedSequence save(int id);
    bool restore(int id, const SavedSequence & saved);

    // The images that prompts may contain. A prompt names the rows of an image by the ids that Images::add() assigns.
    Images & images() { return images_; }

    // The planner, which holds the statistics about this machine and this drafter.
    const Planner & planner() const { return planner_; }
    Planner & planner() { return planner_; }

    // Numbers of rows at which a batch gives every row the same bits as a batch of one row. measure_exact_rows()
    // measures the missing numbers, and asks `progress` before each batch whether to stop. The conversations keep their
    // rows. set_exact_rows() sets the numbers; pass only numbers that were measured with the same files, build, device
    // and options. Numbers that are not measured count as inexact. Error(busy) if a conversation generates.
    void measure_exact_rows(Progress & progress);
    void set_exact_rows(const ExactRows & rows);
    const ExactRows & exact_rows() const { return exact_rows_; }

    // Returns the current number of threads for decoding.
    int n_threads() const { return rounds_.n_threads(); }

  private:
    class Use;  // checks that no other call runs and that the engine is not broken

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
    ExactRows exact_rows_;
    Rounds rounds_;
    std::atomic<bool> in_use_{false};
    std::string why_broken_;  // cause of the failure that broke the engine; empty = not broken
    // Error of a later round of step(). The next step() for the same conversations throws this error.
    struct LateError {
        std::vector<int> ids;
        std::exception_ptr error;
    } late_error_;
};

}  // namespace eaglecpp
