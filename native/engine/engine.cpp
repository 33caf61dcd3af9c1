// SPDX-License-Identifier: MIT
#include "engine/engine.h"

#include <algorithm>
#include <climits>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/process.h"

namespace eaglecpp {

// Maximum number of logits that a device picks per row of the target. llama.cpp's default top-k is 40.
static constexpr int n_picked_max = 64;

class Engine::Use {
  public:
    explicit Use(Engine & e) : e_(e) {
        check_not_forked("the engine cannot be used");
        fail_if(e.in_use_.exchange(true), ErrorKind::busy,
                "the engine is in use by another thread; use one engine per thread");
        if (e.why_broken_.empty()) return;
        e.in_use_ = false;
        fail(ErrorKind::broken, "an earlier failure left this engine unusable (%s); open the engine again",
             e.why_broken_.c_str());
    }
    ~Use() { e_.in_use_ = false; }

  private:
    Engine & e_;
};

void Engine::retire() {
    if (in_use_.exchange(true)) fail(ErrorKind::busy, "the engine is in use by another thread and cannot be closed");
}

// Runs f(), which changes sequences. After an Error, calls `restore`. After a failed assertion or any other exception,
// marks the engine as broken, because the state of llama.cpp, ggml or the driver is then unknown.
template <typename F, typename Restore>
auto Engine::attempt(F && f, Restore && restore) -> decltype(f()) {
    const auto try_restore = [&] {
        try {
            restore();
        } catch (const std::exception & e) {
            why_broken_ = e.what();
        } catch (...) {
            why_broken_ = "unknown exception";
        }
    };
    try {
        return f();
    } catch (const Error & e) {
        if (e.kind == ErrorKind::broken) {
            why_broken_ = e.what();
        } else {
            try_restore();
        }
        throw;
    } catch (const std::bad_alloc &) {
        try_restore();
        fail(ErrorKind::out_of_memory, "the host is out of memory; the current generations have ended");
    } catch (const std::exception & e) {
        why_broken_ = e.what();
        fail(ErrorKind::broken, "llama.cpp or a device's driver failed: %s; open the engine again", e.what());
    } catch (...) {
        why_broken_ = "unknown exception";
        fail(ErrorKind::broken, "llama.cpp or a device's driver threw an unknown exception; open the engine again");
    }
}

static Exactness exactness_of(const std::string & text) {
    if (text == "on") return Exactness::on;
    if (text == "auto") return Exactness::automatic;
    if (text == "off") return Exactness::off;
    fail(ErrorKind::value, "exact: expected auto, on or off, found '%s'", text.c_str());
}

static PlannerOptions planner_options(const Target & target) {
    const Vocabulary & vocab = target.vocab();
    PlannerOptions out;
    // Batches of targets with a recurrent state are not padded, because such a state cannot drop rows that it has read.
    out.pads_rows = !target.model().is_cpu() && !target.model().has_state();
    for (Token t = 0; t < vocab.size(); ++t) {
        if (vocab.is_eog(t)) out.end_tokens.push_back(t);
    }
    return out;
}

Engine::Engine(const EngineOptions & options)
    : exactness_(exactness_of(options.exact)),
      models_(open_models(options)),
      planner_(planner_options(*models_.target)),
      conversations_(models_),
      rounds_(options, models_, planner_, conversations_, exact_rows_.counts) {
    const DraftTraits & traits = models_.draft_traits;
    set_exact_rows({});
    if (drafter()) planner_.acceptance().expect(traits.held_out_rates, traits.is_parallel);
}

int Engine::open_sequence() {
    Use use(*this);
    target().check_generates();
    return attempt([&] { return conversations_.open().id; }, [] {});
}

void Engine::close_sequence(int id) {
    Use use(*this);
    Sequence & s = conversations_.get(id);
    attempt([&] { models_.target->cells().truncate(s.range, 0); }, [] {});
    planner_.end_text(s.plan);
    conversations_.close(id);
}

SavedSequence Engine::save(int id) {
    Use use(*this);
    const Sequence & s = conversations_.get(id);
    fail_if(!can_save() || s.is_active, ErrorKind::value, "conversation %d cannot be saved: %s", id,
            s.is_active ? "it is generating" : "llama.cpp cannot restore this target's rows exactly");
    return attempt([&] { return conversations_.save(s); }, [] {});
}

void Engine::check_saved(const Sequence & s, const SavedSequence & saved) const {
    const SavedSequence::Header h = saved.header();
    bool fits = can_save() && h.n_tokens <= target().n_ctx() && h.n_past > 0 && h.n_past <= h.n_tokens;
    fits = fits && h.n_draft_rows <= h.n_past && h.first <= h.n_past - h.n_rows;
    fits = fits && h.n_replay >= 0 && h.n_replay < h.n_past;
    for (const ImageRows & image : saved.images()) {
        fits = fits && image.first >= 0 && image.n_pos > 0 && image.n_pos <= image.n_rows && image.n_rows <= h.n_past &&
               image.first <= h.n_past - image.n_rows;
    }
    for (Token t : fits ? saved.tokens() : Tokens()) fits = fits && t < target().vocab().size();
    if (s.draft) {
        fits = fits && h.n_aux == (int)s.hidden_states.layers().size() && h.n_embd == s.hidden_states.n_embd() &&
               s.draft->fits(saved.draft(), h.n_draft_rows);
    } else {
        fits = fits && h.n_draft == 0 && h.n_draft_rows == 0;
    }
    if (!fits) fail(ErrorKind::value, "a saved conversation of %d tokens does not fit this engine", h.n_tokens);
}

bool Engine::restore(int id, const SavedSequence & saved) {
    Use use(*this);
    Sequence & s = conversations_.get(id);
    check_saved(s, saved);
    return attempt([&] { return conversations_.restore(s, saved); }, [&] { conversations_.forget(s); });
}

void Engine::clear(int id) {
    Use use(*this);
    attempt([&] { conversations_.forget(conversations_.get(id)); }, [] {});
}

// Ends a generation and rolls back the tokens of the last step that the caller does not keep. Target-only decoding
// would not have run these tokens, and a later prompt that continues the text must find the same rows. The counters
// leave out the rounds after the last kept token, but the times include them.
void Engine::end(int id, int n_taken) {
    Use use(*this);
    Sequence & s = conversations_.get(id);
    s.is_active = false;
    if (n_taken < 0 || n_taken >= (int)s.tokens.size() - s.n_prompt) return;
    const Stats all = s.stats;
    const auto is_last = [&](const auto & round) { return round.first.n_predicted >= n_taken; };
    const auto last = std::find_if(s.rounds.begin(), s.rounds.end(), is_last);
    if (last != s.rounds.end()) s.stats = last->first, s.plan_summary = last->second;
    s.stats.predicted_ms = all.predicted_ms, s.stats.draft_ms = all.draft_ms, s.stats.verify_ms = all.verify_ms;
    const int n_tokens = s.n_prompt + n_taken;
    if (s.n_past < n_tokens || !target().model().supports_trees()) return;
    attempt([&] { conversations_.cut(s, n_tokens); }, [&] { conversations_.forget(s); });
}

std::unique_ptr<Sampler> Engine::make_sampler(const GenerateParams & params) const {
    const Vocabulary & vocab = target().vocab();
    return std::make_unique<Sampler>(params.sampling, vocab.size(), &vocab, target().n_ctx());
}

// Returns the prompt's images. Appends the images whose rows share a position to `rows`. Checks that all other tokens
// are in the vocabulary.
std::vector<std::shared_ptr<const Image>> Engine::images_of(const Tokens & prompt, std::vector<ImageRows> & rows) {
    std::vector<std::shared_ptr<const Image>> out;
    for (size_t i = 0; i < prompt.size(); ++i) {
        const Token t = prompt[i];
        if (t >= 0 && t < target().vocab().size()) continue;
        fail_if(t > image_token_first, ErrorKind::value, "prompt token %d is outside the vocabulary of %d tokens", t,
                target().vocab().size());
        const std::shared_ptr<const Image> image = images_.find(t);
        if (!image) fail(ErrorKind::value, "prompt token %d: the image is unknown or was evicted; add it again", t);
        const size_t end = i + image->n_rows;
        for (size_t at = i; at < end; ++at) {
            if (at + 1 < prompt.size() && prompt[at] == image->first - (Token)(at - i)) continue;
            fail(ErrorKind::value, "prompt token %d: expected all %d rows of the image, followed by text", t,
                 image->n_rows);
        }
        fail_if(image->is_whole && image->n_rows > target().options().n_ubatch, ErrorKind::value,
                "this model reads an image in one batch; raise n_ubatch from %d to at least %d",
                target().options().n_ubatch, image->n_rows);
        out.push_back(image);
        if (image->n_columns > 0) rows.push_back({(int)i, image->n_rows, image->n_pos()});
        i = end - 1;
    }
    return out;
}

int Engine::begin(int id, const Tokens & prompt, const GenerateParams & params, std::unique_ptr<Sampler> sampler) {
    Use use(*this);
    if (std::count(late_error_.ids.begin(), late_error_.ids.end(), id) > 0) late_error_ = {};
    Sequence & s = conversations_.get(id);
    const int n_ctx = target().n_ctx();
    if (prompt.empty()) fail(ErrorKind::value, "the prompt is empty; pass at least one token, for example BOS");
    std::vector<ImageRows> image_rows;
    const std::vector<std::shared_ptr<const Image>> images = images_of(prompt, image_rows);
    fail_if((int)prompt.size() >= n_ctx, ErrorKind::context_full,
            "the prompt is too long: it has %zu tokens, which exceeds the available context size of %d including the "
            "answer; shorten it or raise n_ctx (trained for %d)",
            prompt.size(), n_ctx, llama_model_n_ctx_train(target().model().get()));
    if ((models_.can_draft() || models_.drafts_forms) && params.strategy.is_fixed()) check_strategy(params.strategy);
    const Exactness exactness = params.exact.empty() ? exactness_ : exactness_of(params.exact);
    if (!sampler) sampler = make_sampler(params);
    sampler->accept_prompt(prompt);

    s.is_active = false;
    s.stats = {};
    s.images = images;
    attempt(
        [&] {
            if (!params.cache_prompt) conversations_.forget(s);
            conversations_.reuse(s, prompt);
            models_.target->cells().set_images(s.range, image_rows);
            rounds_.replay(s);
        },
        [&] { conversations_.forget(s); });
    s.stats.n_reused = s.n_past;
    // Rounds the number of picked logits up, so that llama.cpp does not rebuild its graphs for each sampler.
    const int n_needed = params.n_probs > 0 ? 0 : sampler->n_needed();
    const int n_top = n_needed <= 1 ? n_needed : n_needed <= n_picked_max ? n_picked_max : 0;
    s.n_picked = attempt([&] { return models_.target->picks().set(s.range, n_top) ? n_top : 0; }, [] {});
    s.stats.n_prompt = (int)prompt.size() - s.stats.n_reused;
    s.tokens = prompt;
    s.n_prompt = (int)prompt.size();
    s.n_max = params.max_tokens < 0 ? n_ctx : std::min<int64_t>(n_ctx, (int64_t)s.n_prompt + params.max_tokens);
    s.tokens.reserve(s.n_max);  // makes sure that commit() never allocates
    s.params = params;
    s.sampler = std::move(sampler);
    s.decode_start_ms = 0.0;
    s.failure.reset();
    s.exactness = exactness;
    begin_plan(s, exactness);
    // Rows that another prompt is still computing are copied later, by Rounds::step().
    if (rounds_.can_adopt(s)) attempt([&] { conversations_.adopt(s); }, [&] { conversations_.forget(s); });
    s.is_active = true;
    return s.stats.n_reused;
}

void Engine::check_strategy(const Strategy & st) const {
    const int n_nodes_max = target().options().n_draft_max;
    const DraftTraits & traits = models_.draft_traits;
    const int n_rows_max = drafter() ? traits.n_draft_rows_max : INT_MAX;
    fail_if(
        st.nodes > n_nodes_max || (int64_t)(st.depth - 1) * st.k > n_rows_max, ErrorKind::value,
        "strategy with %d nodes, depth %d, k %d: this engine was opened for up to %d draft nodes; raise n_draft_max",
        st.nodes, st.depth, st.k, n_nodes_max);
    fail_if(traits.depth_max > 0 && st.depth > traits.depth_max, ErrorKind::value,
            "strategy with depth %d: this drafter gives up to %d tokens per pass; lower the depth", st.depth,
            traits.depth_max);
    fail_if(st.kind == Strategy::Kind::tree && !target().model().supports_trees(), ErrorKind::unsupported,
            "strategy tree: %s (architecture '%s'); use a chain strategy", target().model().chains_only(),
            target().model().arch().c_str());
}

void Engine::begin_plan(Sequence & s, Exactness exactness) {
    s.plan.use(s.params.strategy);
    const RequestKind kind = request_kind(s.params.sampling.temperature, !s.params.sampling.grammar.empty(),
                                          s.sampler->coupled().has_value());
    // With a drafter, a fixed strategy does not copy drafts from the text.
    const bool drafts_chains = s.plan.is_auto() || (!drafter() && s.plan.strategy().kind != Strategy::Kind::off);
    s.uses_text = models_.drafts_text && drafts_chains;
    s.forces = s.sampler->grammar() && models_.drafts_forms && drafts_chains;
    if (s.uses_text) s.text.assign(s.tokens);
    planner_.begin_request(s.plan, kind, /*is_same_conversation=*/s.stats.n_reused > 0, exactness);
    s.plan_summary = {};
    s.plan_log.clear();
}

// Adds a round's results, `next`, to the results of earlier rounds.
static void append(std::vector<StepResult> & all, std::vector<StepResult> next) {
    if (all.empty()) all.swap(next);
    for (StepResult & n : next) {
        for (StepResult & r : all) {
            if (r.sequence != n.sequence) continue;
            r.tokens.insert(r.tokens.end(), n.tokens.begin(), n.tokens.end());
            r.accepted.insert(r.accepted.end(), n.accepted.begin(), n.accepted.end());
            r.logprobs.insert(r.logprobs.end(), n.logprobs.begin(), n.logprobs.end());
            r.finish = n.finish;
            if (n.error) r.error.emplace(*n.error);
        }
    }
}

std::vector<StepResult> Engine::step(const std::vector<int> & ids, double for_ms) {
    Use use(*this);
    const auto has_failed = [&](int id) { return std::count(late_error_.ids.begin(), late_error_.ids.end(), id) > 0; };
    if (late_error_.error && !ids.empty() && std::all_of(ids.begin(), ids.end(), has_failed)) {
        std::rethrow_exception(std::exchange(late_error_, {}).error);
    }
    std::vector<Sequence *> sequences;
    for (int id : ids) {
        Sequence * s = &conversations_.get(id);
        if (!s->is_active) fail(ErrorKind::value, "sequence %d is not generating", id);
        fail_if(std::count(sequences.begin(), sequences.end(), s) > 0, ErrorKind::value,
                "sequence %d is listed twice in one step", id);
        s->rounds.clear();
        sequences.push_back(s);
    }
    const auto goes_on = [](const StepResult & r) { return r.phase == "decode" && r.finish.empty() && !r.error; };
    const double start = now_ms();
    std::vector<StepResult> results;
    do {
        for (Sequence * s : sequences) s->rounds.emplace_back(s->stats, s->plan_summary);
        const auto roll_back = [&] {
            for (auto * s : sequences) conversations_.roll_back(*s, s->n_prompt + s->rounds.back().first.n_predicted);
        };
        try {
            attempt([&] { append(results, rounds_.step(sequences)); }, roll_back);
        } catch (...) {
            if (results.empty()) throw;
            late_error_ = {ids, std::current_exception()};  // the next step() throws it
            break;
        }
    } while (!results.empty() && std::all_of(results.begin(), results.end(), goes_on) && now_ms() - start < for_ms);
    return results;
}

void Engine::measure_exact_rows(Progress & progress) {
    Use use(*this);
    fail_if(conversations_.does_any_generate(), ErrorKind::busy,
            "exact rows cannot be measured while a conversation generates; end its generation first");
    ExactRows rows = exact_rows_;
    rows.counts.is_complete = !(models_.can_draft() || models_.drafts_forms) || *target().model().never_exact();
    std::optional<SeqRange> lent;
    const auto measure = [&](const SeqRange & range) {
        rounds_.measure_exact_rows(lent.emplace(range), progress, rows);
    };
    if (!rows.counts.is_complete) {
        attempt([&] { conversations_.lend(measure); }, [&] { lent && models_.target->cells().truncate(*lent, 0); });
    }
    set_exact_rows(rows);
}

void Engine::set_exact_rows(const ExactRows & rows) {
    exact_rows_ = rows;
    planner_.set_exact_rows(rows.counts);
}

}  // namespace eaglecpp
