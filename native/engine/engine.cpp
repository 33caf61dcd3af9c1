// SPDX-License-Identifier: MIT
#include "engine/engine.h"

#include <algorithm>
#include <climits>
#include <new>
#include <numeric>
#include <set>

#include "algo/match.h"
#include "algo/topk.h"
#include "base/error.h"
#include "base/process.h"
#include "engine/draft_place.h"
#include "engine/fit.h"

namespace eaglecpp {

namespace {
// Rows a generation without drafting lets wait before it commits them to the drafter, as many as one commit graph
// takes: few enough that their features stay small, many enough that a drafter that is not used costs little. Probes
// mostly come first.
constexpr int n_pending_max = 128;
// Tokens of a text that drafts from it look at; some 10 MiB.
constexpr int n_text_most = 1 << 17;
// Asking a grammar: the least part of a plain round that may always be spent on a node, and the weight of a new time.
constexpr double grammar_share = 0.01, grammar_rate = 0.1;
constexpr int text_share = 2;      // nodes proposed for each that a round may verify
constexpr int n_beside_least = 8;  // prompt rows that are worth sharing a batch
constexpr int n_adopt_least = 16;  // rows worth taking over from another conversation
// Features of a conversation's last rows that are parked with it: the next prompt leaves its text there, if anywhere.
constexpr int n_recent_parked = 32;
// Tokens that a device picks from a row of the target's logits; the default top-k is 40.
constexpr int n_picked_most = 64;
}  // namespace

class Engine::Use {
  public:
    explicit Use(Engine & e) : e_(e) {
        check_not_forked("the engine cannot be used");
        if (e.is_broken_)
            fail(ErrorKind::broken, "an earlier internal failure left this engine unusable; open it anew");
        if (e.in_use_.exchange(true)) {
            fail(ErrorKind::busy, "the engine is in use by another thread; one thread at a time, or one engine each");
        }
    }
    ~Use() { e_.in_use_ = false; }

  private:
    Engine & e_;
};

// Every change of what sequences hold goes through here. Whatever is thrown, afterwards either `restore` has made the
// sequences whole again or the engine is marked as broken: an assertion and an exception that is not ours come from
// inside llama.cpp, ggml or a driver, and nobody knows what state they leave.
template <typename F, typename Restore>
auto Engine::attempt(F && f, Restore && restore) -> decltype(f()) {
    const auto try_restore = [&] {
        try {
            restore();
        } catch (...) {
            is_broken_ = true;
        }
    };
    try {
        return f();
    } catch (const Error & e) {
        if (e.kind == ErrorKind::broken) {
            is_broken_ = true;
        } else {
            try_restore();
        }
        throw;
    } catch (const std::bad_alloc &) {
        try_restore();
        fail(ErrorKind::out_of_memory, "the host's memory ran out; what was being generated has ended");
    } catch (const std::exception & e) {
        is_broken_ = true;
        fail(ErrorKind::broken, "llama.cpp or a device's driver failed: %s; open the engine anew", e.what());
    } catch (...) {
        is_broken_ = true;
        fail(ErrorKind::broken, "llama.cpp or a device's driver failed without saying why; open the engine anew");
    }
}

static Exactness exactness_of(const std::string & text) {
    if (text == "on") return Exactness::on;
    if (text == "auto") return Exactness::automatic;
    if (text == "off") return Exactness::off;
    fail(ErrorKind::value, "exact: '%s' is not one of auto, on, off", text.c_str());
}

Engine::Engine(const EngineOptions & options) {
    if (options.n_sequences < 1)
        fail(ErrorKind::value, "n_sequences: expected at least 1, found %d", options.n_sequences);
    if (options.n_draft_max < 0 || options.n_draft_max > 1024 || options.n_leaves_max < 1) {
        fail(ErrorKind::value, "n_draft_max %d and n_leaves_max %d: expected 0 to 1024 and at least 1",
             options.n_draft_max, options.n_leaves_max);
    }
    exactness_ = exactness_of(options.exact);
    if (!options.draft_path.empty()) draft_file_ = std::make_unique<DraftFile>(options.draft_path);
    check_text_options(options);
    TargetOptions target_options = options;
    if (!draft_file_ && !drafts_text_) target_options.n_draft_max = 0, target_options.n_leaves_max = 1;
    target_ = std::make_unique<Target>(target_options);
    set_threads(options);
    if (draft_file_) check_fit(*draft_file_, *target_);
    target_->open_context(draft_file_ ? draft_file_->spec().target_layers : std::vector<int32_t>{});
    set_planner();
    if (!draft_file_) return;
    PlacedDrafter placed = place_drafter(options, *draft_file_, *target_);
    drafter_ = std::move(placed.drafter);
    why_placed_ = std::move(placed.why);
    planner_.acceptance().expect(drafter_->spec().held_out_rates);
}

void Engine::check_text_options(const EngineOptions & options) {
    if (options.text_drafts != "auto" && options.text_drafts != "on" && options.text_drafts != "off") {
        fail(ErrorKind::value, "text_drafts: '%s' is not one of auto, on, off", options.text_drafts.c_str());
    }
    drafts_text_ = options.text_drafts == "on" || (options.text_drafts == "auto" && draft_file_);
    if (options.text_memory < 0 || options.text_memory > 1 << 20) {
        fail(ErrorKind::value, "text_memory: expected 0 to %d, found %d", 1 << 20, options.text_memory);
    }
    n_text_memory_ = options.text_memory;
}

void Engine::set_planner() {
    PlannerOptions planner;
    for (Token t = 0; t < target_->vocab().size(); ++t) {
        if (target_->vocab().is_eog(t)) planner.end_tokens.push_back(t);
    }
    planner_ = Planner(planner);
}

int Engine::open_sequence() {
    Use use(*this);
    for (int id = 0; id < target_->options().n_sequences; ++id) {
        if (sequences_.count(id)) continue;
        Sequence s;
        s.id = id;
        s.range = target_->cells().seqs(id);
        if (drafts_text_) s.text = TextIndex(n_text_memory_, n_text_most + n_text_memory_);
        if (drafter_) {
            s.draft = attempt([&] { return std::make_unique<DraftSequence>(*drafter_); }, [] {});
            s.pending = PendingFeatures(drafter_->spec().n_aux(), drafter_->spec().n_embd_target);
            s.recent = RecentFeatures(drafter_->spec().n_aux(), drafter_->spec().n_embd_target);
        }
        sequences_.emplace(id, std::move(s));
        return id;
    }
    fail(ErrorKind::value, "all %d conversations of this engine are open; close one or raise n_sequences",
         target_->options().n_sequences);
}

Sequence & Engine::get(int id) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) fail(ErrorKind::value, "no open sequence %d", id);
    return it->second;
}

const Sequence & Engine::sequence(int id) const {
    return const_cast<Engine *>(this)->get(id);
}

void Engine::close_sequence(int id) {
    Use use(*this);
    Sequence & s = get(id);
    attempt([&] { target_->cells().truncate(s.range, 0); }, [] {});
    planner_.end_text(s.plan);
    sequences_.erase(id);
}

ParkedSequence Engine::park(int id) {
    Use use(*this);
    const Sequence & s = get(id);
    if (!can_park() || s.is_active) {
        fail(ErrorKind::value, "conversation %d cannot be parked: %s", id,
             s.is_active ? "it is generating" : "this target's rows do not stay as they were computed");
    }
    return attempt(
        [&] {
            ParkedSequence out;
            out.tokens = s.tokens;
            out.n_past = s.n_past;
            out.inexact_from = s.inexact_from;
            out.target = target_->cells().save_rows(s.range);
            if (!s.draft) return out;
            out.n_draft_rows = s.draft->n_rows();
            out.draft = s.draft->save_rows(out.n_draft_rows);
            out.pending = s.pending;
            out.recent = PendingFeatures(drafter_->spec().n_aux(), drafter_->spec().n_embd_target);
            int first = s.n_past;
            while (first > s.n_past - n_recent_parked && s.recent.has(first - 1)) --first;
            for (int pos = first; pos < s.n_past; ++pos) out.recent.add(s.recent.row(pos), {0});
            return out;
        },
        [] {});
}

bool Engine::unpark(int id, const ParkedSequence & parked) {
    Use use(*this);
    Sequence & s = get(id);
    return attempt(
        [&] {
            forget(s);
            if (!target_->cells().load_rows(s.range, parked.target, parked.n_past)) return false;
            if (s.draft) {
                s.draft->load_rows(parked.draft, parked.n_draft_rows);
                s.pending = parked.pending;
                const int n = parked.recent.n_rows();
                s.recent.add_last(parked.n_past - n, parked.recent.rows(), n);
            }
            s.tokens = parked.tokens;
            s.n_past = parked.n_past;
            s.inexact_from = parked.inexact_from;
            return true;
        },
        [&] { forget(s); });
}

void Engine::clear(int id) {
    Use use(*this);
    attempt([&] { forget(get(id)); }, [] {});
}

// What a round gave beyond the end that the caller saw goes: plain decoding would not have run it, and a prompt that
// goes on in the same words must find the same rows.
void Engine::end(int id, int n_taken) {
    Use use(*this);
    Sequence & s = get(id);
    s.is_active = false;
    const int n_tokens = s.n_prompt + n_taken;
    if (n_taken < 0 || n_tokens >= (int)s.tokens.size() || s.n_past < n_tokens || !target_->model().supports_trees())
        return;
    const Token last = s.tokens[n_tokens - 1];
    attempt(
        [&] {
            if (s.draft) reuse_draft(s, n_tokens - 1, /*is_same_next=*/true);
            keep(s, n_tokens - 1);
            if (s.n_past == n_tokens - 1) s.tokens.push_back(last);
        },
        [&] { forget(s); });
}

size_t Engine::draft_bytes(int id) const {
    const Sequence & s = sequence(id);
    return s.draft ? s.draft->n_bytes() : 0;
}

// One number for all samplers that cut alike: another one would make llama.cpp build its graphs anew.
static int n_to_pick(int n_needed) {
    return n_needed <= 1 ? n_needed : n_needed <= n_picked_most ? n_picked_most : 0;
}

int Engine::begin(int id, const Tokens & prompt, const GenerateParams & params) {
    Use use(*this);
    Sequence & s = get(id);
    const int n_ctx = target_->n_ctx();
    if (prompt.empty()) fail(ErrorKind::value, "the prompt is empty: give at least one token (a BOS token will do)");
    for (Token t : prompt) {
        if (t < 0 || t >= target_->vocab().size()) {
            fail(ErrorKind::value, "prompt token %d is outside the vocabulary of %d", t, target_->vocab().size());
        }
    }
    if ((int)prompt.size() >= n_ctx) {
        fail(ErrorKind::context_full,
             "the prompt has %zu tokens but the context holds %d and the answer needs room; "
             "raise n_ctx (the model was trained for %d) or shorten the prompt",
             prompt.size(), n_ctx, llama_model_n_ctx_train(target_->model().get()));
    }
    if (can_draft() && params.strategy.is_fixed()) check_strategy(params.strategy);
    const Exactness exactness = params.exact.empty() ? exactness_ : exactness_of(params.exact);
    std::optional<SynthAcceptance> synth;
    if (!params.synth_rates.empty()) synth.emplace(params.synth_rates, params.sampling.seed);
    auto sampler = std::make_unique<Sampler>(params.sampling, target_->model().get(), n_ctx);
    sampler->accept_prompt(prompt);

    s.is_active = false;
    s.stats = {};
    s.stats.n_reused = attempt([&] { return reuse(s, prompt); }, [&] { forget(s); });
    const int n_top = params.n_probs > 0 ? 0 : n_to_pick(sampler->n_needed());
    s.n_picked = attempt([&] { return target_->picks().set(s.range, n_top) ? n_top : 0; }, [] {});
    s.stats.n_prompt = (int)prompt.size() - s.stats.n_reused;
    s.tokens = prompt;
    s.n_prompt = (int)prompt.size();
    s.n_max = params.max_tokens < 0 ? n_ctx : std::min<int64_t>(n_ctx, (int64_t)s.n_prompt + params.max_tokens);
    s.tokens.reserve(s.n_max);  // commit_round cannot fail for want of room
    s.params = params;
    s.sampler = std::move(sampler);
    s.synth = std::move(synth);
    s.decode_start_ms = 0.0;
    s.exactness = exactness;
    begin_plan(s, exactness);
    s.is_active = true;
    return s.stats.n_reused;
}

void Engine::check_strategy(const Strategy & st) const {
    const int n_nodes_max = target_->options().n_draft_max;
    const int n_rows_max = drafter_ ? drafter_->options().n_draft_rows_max : INT_MAX;
    if (st.nodes > n_nodes_max || (int64_t)(st.depth - 1) * st.k > n_rows_max) {
        fail(ErrorKind::value,
             "strategy with %d nodes, depth %d, k %d: this engine was opened for up to %d draft nodes; "
             "raise n_draft_max",
             st.nodes, st.depth, st.k, n_nodes_max);
    }
    const int n_parallel = drafter_ ? drafter_->spec().n_parallel : 0;
    if (n_parallel > 0 && st.depth > n_parallel) {
        fail(ErrorKind::value, "strategy with depth %d: this parallel drafter gives %d tokens in its one pass",
             st.depth, n_parallel);
    }
    if (st.kind == Strategy::Kind::tree && !target_->model().supports_trees()) {
        fail(ErrorKind::unsupported, "strategy tree: %s (architecture '%s'); use a chain strategy",
             target_->model().chains_only(), target_->model().meta("general.architecture").c_str());
    }
}

void Engine::begin_plan(Sequence & s, Exactness exactness) {
    if (!s.params.replay.empty()) {
        std::vector<Decision> decisions;
        for (const std::string & line : s.params.replay) decisions.push_back(Decision::from_line(line));
        s.plan.use_replay(std::move(decisions));
    } else if (s.params.strategy.kind == Strategy::Kind::automatic) {
        s.plan.use_auto();
    } else {
        s.plan.use_fixed(s.params.strategy);
    }
    const RequestKind kind = request_kind(s.params.sampling.temperature, !s.params.sampling.grammar.empty(),
                                          s.sampler->coupled().has_value());
    // a fixed strategy with a drafter is the drafter's alone
    const bool is_fixed = s.params.replay.empty() && !(s.params.strategy.kind == Strategy::Kind::automatic);
    s.uses_text = drafts_text_ && !(is_fixed && (drafter_ || s.params.strategy.kind == Strategy::Kind::off));
    if (s.uses_text) s.text.assign(s.tokens);
    planner_.begin_request(s.plan, kind, /*is_same_conversation=*/s.stats.n_reused > 0, exactness);
    s.plan_summary = {};
    s.plan_log.clear();
}

static int n_common(const Tokens & a, const Tokens & b, int n_most) {
    int n = 0;
    while (n < n_most && a[n] == b[n]) ++n;
    return n;
}

// Rolls target and drafter back to the longest common prefix. The last prompt token is always run again: its
// logits give the first token. The target keeps and runs the same rows with a drafter as without one.
int Engine::reuse(Sequence & s, const Tokens & prompt) {
    int n_keep = n_common(s.tokens, prompt, std::min(s.n_past, (int)prompt.size() - 1));
    // after an error the drafter may lack rows; the target runs those positions again, by whatever kernel
    const int n_drafted = s.draft ? s.draft->n_rows() + s.pending.n_rows() : n_keep;
    const bool is_lacking = n_drafted < n_keep;
    n_keep = std::min(n_keep, n_drafted);
    if (s.draft) reuse_draft(s, n_keep, n_keep < (int)s.tokens.size() && s.tokens[n_keep] == prompt[n_keep]);
    keep(s, n_keep);
    run_lost(s);
    if (is_lacking) s.mark_inexact(s.n_past);
    return s.n_past;
}

// A drafter row embeds the token after its position, so the last kept row is right only if the same token follows.
// Where another one does and its feature is gone, it stays as it is: one row among many that still tells of the old
// continuation, which drafts hardly notice.
void Engine::reuse_draft(Sequence & s, int n_keep, bool is_same_next) {
    if (n_keep > s.draft->n_rows()) {
        s.pending.truncate(n_keep - s.draft->n_rows());
        return;
    }
    s.pending.clear();
    const bool is_made_anew = !is_same_next && s.recent.has(n_keep - 1);
    s.draft->truncate(is_made_anew ? n_keep - 1 : n_keep);
    if (is_made_anew) s.pending.add(s.recent.row(n_keep - 1), {0});
}

// Keeps the first n rows, or none where the target cannot go back.
void Engine::keep(Sequence & s, int n) {
    const int n_there = s.n_past - s.n_lost;
    if (n < s.n_past && !target_->cells().truncate(s.range, n)) n = 0;
    s.n_past = n;
    s.n_lost = std::max(0, n - n_there);
    s.tokens.resize(n);
    s.recent.truncate(n);
    if (n == 0) {
        s.pending.clear();
        if (s.draft) s.draft->truncate(0);
    }
    if (s.inexact_from >= n) s.inexact_from = Sequence::none_inexact;
}

void Engine::forget(Sequence & s) {
    s.is_active = false;
    s.n_past = s.n_lost = 0;
    s.tokens.clear();
    s.pending.clear();
    s.recent.truncate(0);
    s.text.clear();
    s.inexact_from = Sequence::none_inexact;
    if (s.draft) s.draft->truncate(0);
    target_->cells().truncate(s.range, 0);
}

void Engine::roll_back(Sequence & s) {
    // a sampler may have gone ahead of the text: the generation ends, the conversation stays
    s.is_active = false;
    // a recurrent state that cannot go back: the next prompt is run in full
    if (!target_->cells().truncate(s.range, s.n_past)) return forget(s);
    if (target_->copies_states() && target_->cells().n_rows(s.range) != s.n_past - s.n_lost) return forget(s);
    s.recent.truncate(s.n_past);
    if (s.draft) s.draft->truncate(s.n_past);
}

std::vector<StepResult> Engine::step(const std::vector<int> & ids) {
    Use use(*this);
    std::set<int> distinct;
    for (int id : ids) {
        if (!get(id).is_active) fail(ErrorKind::value, "sequence %d has no generation under way", id);
        if (!distinct.insert(id).second) fail(ErrorKind::value, "sequence %d is named twice in one step", id);
    }
    return attempt([&] { return advance(ids); },
                   [&] {
                       for (int id : ids) roll_back(get(id));
                   });
}

std::vector<StepResult> Engine::advance(const std::vector<int> & ids) {
    std::vector<StepResult> results;
    std::vector<Sequence *> reading, decoding;
    for (int id : ids) {
        Sequence & s = get(id);
        if (s.n_past + 1 >= s.n_max) {
            s.is_active = false;
            results.push_back(result_of(s, "decode"));
            results.back().finish = "length";
        } else if (s.is_prefilling()) {
            const bool is_begun = s.n_past > s.stats.n_reused;
            if (!is_begun) adopt(s);
            if (!is_begun && waits_for(s, reading)) {
                results.push_back(result_of(s, "prefill"));
            } else {
                reading.push_back(&s);
            }
        } else {
            decoding.push_back(&s);
        }
    }
    if (decoding.empty() || !can_share(reading, decoding)) {
        for (Sequence * s : reading) results.push_back(prefill(*s));
        reading.clear();
    }
    if (!decoding.empty()) decode(decoding, reading, results);
    return results;
}

// One round of each sequence, verified in one batch, which as many rows of the prompts share as everyone can wait for.
void Engine::decode(const std::vector<Sequence *> & sequences, const std::vector<Sequence *> & reading,
                    std::vector<StepResult> & results) {
    const double start = now_ms();
    std::vector<SequencePlan *> plans;
    const bool plans_rounds = can_draft();
    if (plans_rounds) planner_.set_n_threads(n_threads());
    if (drafter_) drafter_->set_n_threads(n_threads());
    if (plans_rounds) planner_.begin_round((int)sequences.size(), /*is_odd=*/!reading.empty());
    if (plans_rounds) {
        draft(sequences);
        for (Sequence * s : sequences) plans.push_back(&s->plan);
        planner_.choose(plans);
    }
    std::vector<Round> rounds;
    for (Sequence * s : sequences)
        rounds.push_back({s, plans_rounds ? s->plan.tree() : DraftTree(s->tokens.back()), 0});
    std::vector<Slice> slices;
    const double verify_ms = verify(rounds, reading, slices);
    const size_t n_before = results.size();
    for (Round & r : rounds) {
        results.push_back(finish_round(r));
        if (!plans_rounds) continue;
        Sequence & s = *r.seq;
        planner_.learn(s.plan, results.back().tokens);
        if (s.params.log_plan) s.plan_log.push_back(s.plan.decision().to_line());
    }
    const bool is_regular = threads_.was_regular() && reading.empty();
    if (plans_rounds && is_regular) planner_.end_round(verify_ms, now_ms() - start);
    if (plans_rounds && !is_regular) planner_.end_odd_round();
    for (size_t i = 0; i < plans.size(); ++i) {
        const int n_tokens = (int)results[n_before + i].tokens.size();
        sequences[i]->plan_summary.add(plans[i]->decision(), n_tokens, planner_.charged());
    }
    for (const Slice & slice : slices) results.push_back(finish_slice(slice, start));
    for (Sequence * s : reading) {
        const auto is_its = [&](const Slice & slice) { return slice.seq == s; };
        if (std::any_of(slices.begin(), slices.end(), is_its)) continue;
        // where the drafts left no room for any, the first prompt has a batch of its own: nobody waits for ever
        const bool is_next = slices.empty() && s == reading.front();
        results.push_back(is_next ? prefill(*s) : result_of(*s, "prefill"));
    }
}

StepResult Engine::result_of(const Sequence & s, const char * phase) const {
    StepResult r;
    r.sequence = s.id;
    r.phase = phase;
    r.n_prompt = s.n_prompt;
    r.n_prompt_done = std::min(s.n_past, s.n_prompt);
    return r;
}

// --- prefill -------------------------------------------------------------------------------------------------------

// One slice of prompt tokens, in batches of the size that was asked for, whatever a drafter needs: where a prompt is
// cut decides by which kernels its rows are made. The last prompt token gives the first token of the answer: a round
// with nothing drafted.
StepResult Engine::prefill(Sequence & s) {
    double start = now_ms();
    const int n_slice_end = std::min(s.n_past + target_->n_slice(), prompt_end(s));
    StepResult result = result_of(s, "prefill");
    while (s.n_past < n_slice_end && result.phase == "prefill") {
        const Slice slice{&s, 0, std::min(target_->n_prompt_rows(), n_slice_end - s.n_past)};
        batch_.clear();
        add_rows(slice);
        if (!target_->prepare_prompt(s.range, slice.n_rows)) s.mark_inexact(s.n_past);
        run(ThreadPolicy::Kind::prompt);
        // the last block and the head of all rows round by their number, those of the last row alone do not
        if (target_->needs_all_outputs() && slice.is_last() && !exact_rows_.allows(slice.n_rows)) {
            s.mark_inexact(s.n_past + slice.n_rows - 1);
        }
        result = finish_slice(slice, start);
        start = now_ms();
    }
    return result;
}

// without an answer to give, the last prompt token is not needed either
int Engine::prompt_end(const Sequence & s) {
    return s.n_max > s.n_prompt ? s.n_prompt : s.n_prompt - 1;
}

void Engine::add_rows(const Slice & slice) {
    const Sequence & s = *slice.seq;
    for (int i = 0; i < slice.n_rows; ++i) {
        const bool output = target_->needs_all_outputs() || (slice.is_last() && i == slice.n_rows - 1);
        batch_.add(s.tokens[s.n_past + i], s.n_past + i, s.range, output);
    }
}

// after the batch was run
StepResult Engine::finish_slice(const Slice & slice, double start_ms) {
    Sequence & s = *slice.seq;
    const bool is_last = slice.is_last();
    const int n_known = is_last ? slice.n_rows - 1 : slice.n_rows;  // rows whose following token is known
    if (s.draft) commit_prefilled(s, slice.row, n_known);
    s.n_past += n_known;
    s.stats.prompt_ms += now_ms() - start_ms;
    if (!is_last) return result_of(s, "prefill");
    s.decode_start_ms = now_ms();
    return finish_round({&s, DraftTree(s.tokens.back()), slice.row + slice.n_rows - 1});
}

// --- prompts beside rounds -----------------------------------------------------------------------------------------

// How a prompt is cut into batches, and with whom it shares them, changes no bits of its rows, as far as is known; or
// nobody minds.
bool Engine::cuts_freely(const Sequence & s, int n_rows) const {
    if (s.exactness == Exactness::off) return true;
    // without a drafter nothing was measured, and its text is what drafted ones are held against
    return target_->rounds_alike() && (!can_draft() || exact_rows_.allows_all(n_rows));
}

bool Engine::can_share(const std::vector<Sequence *> & reading, const std::vector<Sequence *> & decoding) const {
    if (reading.empty() || !target_->shares_batches()) return false;
    const int n_rows = (int)decoding.size() + n_beside_least;
    const auto cuts = [&](const Sequence * s) { return cuts_freely(*s, n_rows); };
    return n_rows <= target_->options().n_ubatch && std::all_of(reading.begin(), reading.end(), cuts) &&
           std::all_of(decoding.begin(), decoding.end(), cuts);
}

// Rows of the prompts for a batch that has the rounds' rows: the first prompt's first.
std::vector<Engine::Slice> Engine::cut_slices(const std::vector<Sequence *> & reading) const {
    const int n_most = target_->options().n_ubatch;
    int n_left = std::min(n_most - batch_.n_rows(), target_->n_shared_rows());
    std::vector<Slice> slices;
    for (Sequence * s : reading) {
        Slice slice{s, 0, std::min(n_left, prompt_end(*s) - s->n_past)};
        while (slice.n_rows > 0 && !cuts_freely(*s, batch_.n_rows() + slice.n_rows)) --slice.n_rows;
        if (slice.n_rows <= 0) continue;
        slices.push_back(slice);
        n_left -= slice.n_rows;
    }
    return slices;
}

bool Engine::can_adopt(const Sequence & s) const {
    return target_->shares_batches() && cuts_freely(s, 1 + n_beside_least);
}

// One of these is about to run rows that it could take over.
bool Engine::waits_for(const Sequence & s, const std::vector<Sequence *> & reading) const {
    return can_adopt(s) && std::any_of(reading.begin(), reading.end(), [&](const Sequence * other) {
               const int n = n_common(s.tokens, other->tokens, std::min(s.n_prompt - 1, prompt_end(*other)));
               return n >= std::max(s.n_past, other->n_past) + n_adopt_least;
           });
}

// A prompt that begins like the text of another conversation takes its rows over, before it has run any of its own.
void Engine::adopt(Sequence & s) {
    if (!can_adopt(s)) return;
    const Sequence * best = nullptr;
    int n_best = s.n_past + n_adopt_least - 1;
    for (const auto & [id, other] : sequences_) {
        int n_most = std::min(other.n_past, s.n_prompt - 1);
        if (s.draft) n_most = std::min(n_most, other.draft->n_rows() + other.pending.n_rows());
        if (s.exactness != Exactness::off) n_most = std::min(n_most, other.inexact_from);
        const int n = n_common(other.tokens, s.tokens, n_most);
        if (&other != &s && n > n_best) best = &other, n_best = n;
    }
    if (!best) return;
    const int n_own = s.n_past, n = n_best;
    // rows of its own would lie behind those that follow them
    target_->cells().truncate(s.range, 0);
    s.n_past = 0;  // as long as anything below may fail
    target_->cells().copy_prefix(best->range, s.range, n);
    s.inexact_from = best->inexact_from < n ? best->inexact_from : Sequence::none_inexact;
    if (s.draft) {
        s.pending.clear();
        const int n_rows = std::min(n, best->draft->n_rows());
        const bool is_same_next = n < (int)best->tokens.size() && best->tokens[n] == s.tokens[n];
        const bool is_made_anew = n_rows == n && !is_same_next && best->recent.has(n - 1);
        const int n_copied = is_made_anew ? n - 1 : n_rows;
        s.draft->load_rows(best->draft->save_rows(n_copied), n_copied);
        if (is_made_anew) s.pending.add(best->recent.row(n - 1), {0});
        std::vector<int32_t> rows(n - n_rows);
        std::iota(rows.begin(), rows.end(), 0);
        if (!rows.empty()) s.pending.add(best->pending.rows(), rows);
        for (int pos = n_own; pos < n; ++pos) {
            if (best->recent.has(pos)) s.recent.add(pos, best->recent.row(pos), 0);
        }
    }
    s.n_past = n;
    s.stats.n_reused = n;
    s.stats.n_prompt = s.n_prompt - n;
}

void Engine::commit_pending(Sequence & s) {
    if (s.pending.n_rows() == 0) return;
    s.draft->commit(s.pending.rows(), &s.tokens[s.draft->n_rows() + 1], false);
    s.pending.clear();
}

// Commits what is pending and the rows [row, row + n_rows) of the last decode.
void Engine::commit_prefilled(Sequence & s, int row, int n_rows) {
    FeatureRows features = target_->features().from(row, drafter_->spec().n_embd_target);
    s.recent.add_last(s.n_past, features, n_rows);
    commit_pending(s);
    features.n_rows = n_rows;
    if (n_rows > 0) s.draft->commit(features, &s.tokens[s.draft->n_rows() + 1], false);
}

// --- draft ---------------------------------------------------------------------------------------------------------

void Engine::draft(const std::vector<Sequence *> & sequences) {
    std::vector<Sequence *> growing;
    for (Sequence * s : sequences) {
        const double start = now_ms();
        decide(*s);
        if (!s->plan.frontier().empty()) {
            growing.push_back(s);
        } else if (s->draft && s->pending.n_rows() >= n_pending_max) {
            const int n_rows = s->pending.n_rows();
            commit_pending(*s);
            planner_.catch_up(s->plan, n_rows, now_ms() - start);
        }
        s->stats.draft_ms += now_ms() - start;
    }
    if (!growing.empty()) grow(std::move(growing));
}

void Engine::decide(Sequence & s) {
    RoundRequest request;
    request.root = s.tokens.back();
    request.n_left = s.n_max - (int)s.tokens.size();
    request.n_pending = s.pending.n_rows();
    request.n_again = s.n_lost;
    request.limits.runs_again = target_->copies_states();
    request.limits.n_nodes = target_->options().n_draft_max;
    request.limits.n_leaves = s.range.count;
    request.limits.n_leaves_exact = target_->keeps_order() && target_->cells().has_room_for_trees() ? s.range.count : 1;
    if (drafter_) request.limits.n_draft_rows = drafter_->options().n_draft_rows_max;
    if (drafter_ && drafter_->spec().is_parallel()) request.limits.n_levels = drafter_->spec().n_parallel;
    if (s.uses_text) request.text = &propose_text(s, request.limits);
    planner_.decide(s.plan, request);
}

// More than a round can verify: the planner picks the best of them. What the grammar forbids goes first, with all that
// follows it.
const TextDraft & Engine::propose_text(Sequence & s, const PlanLimits & limits) {
    const TextDraft & all = s.text.propose(text_share * limits.n_nodes, limits.n_nodes, limits.n_leaves > 1);
    if (all.empty() || !s.sampler->has_grammar()) return all;
    text_draft_.nodes.clear();
    std::vector<int32_t> moved(all.size(), -1);
    for (int i = 0; i < all.size(); ++i) {
        TextDraft::Node node = all.nodes[i];
        if (node.parent >= 0 && moved[node.parent] < 0) continue;
        Tokens path;
        for (int32_t at = node.parent; at >= 0; at = all.nodes[at].parent) path.push_back(all.nodes[at].token);
        std::reverse(path.begin(), path.end());
        std::vector<Candidate> one{{node.token, 0.0f}};
        drop_forbidden(s, path, one);
        if (one.empty()) continue;
        node.parent = node.parent < 0 ? -1 : moved[node.parent];
        moved[i] = text_draft_.size();
        text_draft_.nodes.push_back(node);
    }
    return text_draft_;
}

// Asking must cost less than a row of the verification, or the row may as well find out. What a clock decides cannot be
// repeated from a log.
bool Engine::is_grammar_cheap(const Sequence & s) const {
    if (s.params.log_plan || !s.params.replay.empty()) return false;
    const CostTable & costs = planner_.costs();
    const double row_ms = costs.knows_plain() ? costs.verify(2) - costs.verify(1) : 0.0;
    return s.grammar_ms <= std::max(row_ms, grammar_share * costs.plain());
}

// Removes the children of the node at the end of `path` that the grammar forbids. At the root that is nearly free;
// deeper down a copy of the grammar has to read the path.
void Engine::drop_forbidden(Sequence & s, const Tokens & path, std::vector<Candidate> & children) {
    if (!s.sampler->has_grammar() || (!path.empty() && !is_grammar_cheap(s))) return;
    const double start = now_ms();
    Tokens tokens;
    for (const Candidate & c : children) tokens.push_back(c.token);
    const std::vector<bool> allowed = s.sampler->grammar_allows(path, tokens);
    size_t n = 0;
    for (size_t i = 0; i < children.size(); ++i) {
        if (allowed[i]) children[n++] = children[i];
    }
    children.resize(n);
    if (!path.empty()) s.grammar_ms += grammar_rate * (now_ms() - start - s.grammar_ms);
}

// What the drafter proposes behind the node whose children lie at index `pos` of the text. A target that draws with our
// noise is best foreseen with the same noise, else the drafter's likeliest tokens are.
static std::vector<Candidate> propose(Sequence & s, int row, Pos pos) {
    const auto & sampling = s.sampler->coupled();
    return sampling ? s.draft->candidates(row, s.plan.k(), *sampling, pos) : s.draft->candidates(row, s.plan.k());
}

// Level by level as the planner asks, each level of all conversations in one graph: the pending rows give the roots'
// children, then draft rows theirs. Each of them waits for all that it was there for. A parallel drafter gives all
// levels with the first.
void Engine::grow(std::vector<Sequence *> growing) {
    double start = now_ms();
    const auto spend = [&] {
        const double ms = now_ms() - start;
        for (Sequence * s : growing) s->stats.draft_ms += ms;
        return ms;
    };
    const bool is_parallel = drafter_->spec().is_parallel();
    std::vector<DraftCommit> commits;
    for (Sequence * s : growing) {
        const int n_ahead = is_parallel ? s->plan.n_levels_max() - 1 : 0;
        commits.push_back({s->draft.get(), s->pending.rows(), &s->tokens[s->draft->n_rows() + 1], n_ahead});
    }
    DraftSequence::commit_together(commits);
    std::vector<Proposal> proposals;
    std::map<Sequence *, std::vector<int>> rows_of;  // pool node -> draft row that gives its children
    for (Sequence * s : growing) {
        s->pending.clear();
        rows_of[s] = {-1};
        proposals.push_back({&s->plan, {propose(*s, 0, (Pos)s->tokens.size())}});
        drop_forbidden(*s, {}, proposals.back().children[0]);
    }
    while (true) {
        planner_.grow(proposals, spend());
        const auto is_over = [](const Sequence * s) { return s->plan.frontier().empty(); };
        growing.erase(std::remove_if(growing.begin(), growing.end(), is_over), growing.end());
        if (growing.empty()) return;
        start = now_ms();
        if (!is_parallel) extend(growing, rows_of);
        proposals.clear();
        for (Sequence * s : growing) proposals.push_back({&s->plan, propose_level(*s)});
    }
}

// the frontiers as draft rows of one graph
void Engine::extend(const std::vector<Sequence *> & growing, std::map<Sequence *, std::vector<int>> & rows_of) {
    std::vector<DraftLevel> levels;
    for (Sequence * s : growing) {
        const DraftTree & pool = s->plan.pool();
        std::vector<int> & row_of = rows_of[s];
        const int first = s->draft->n_draft_rows();
        row_of.resize(pool.size(), -1);
        levels.push_back({s->draft.get(), {}});
        for (int32_t node : s->plan.frontier()) {
            row_of[node] = first + (int)levels.back().rows.size();
            levels.back().rows.push_back({pool.token[node], row_of[pool.parent[node]]});
        }
    }
    DraftSequence::extend_together(levels);
}

// What the drafter's last call proposes behind each node of the frontier. What a parallel drafter says of a token does
// not depend on the ones drafted before it.
std::vector<std::vector<Candidate>> Engine::propose_level(Sequence & s) {
    const std::vector<int32_t> & frontier = s.plan.frontier();
    const DraftTree & pool = s.plan.pool();
    const bool is_parallel = drafter_->spec().is_parallel();
    std::vector<Candidate> next;
    std::vector<std::vector<Candidate>> children;
    for (size_t i = 0; i < frontier.size(); ++i) {
        const int depth = pool.depth[frontier[i]];
        // the root's children lie behind the last token
        if (!is_parallel || i == 0) next = propose(s, is_parallel ? depth : (int)i, (Pos)s.tokens.size() + depth);
        children.push_back(next);
        if (!s.sampler->has_grammar()) continue;
        Tokens path;
        for (int32_t node : pool.path(frontier[i])) path.push_back(pool.token[node]);
        path.erase(path.begin());  // the root has been read
        drop_forbidden(s, path, children.back());
    }
    return children;
}

// --- threads -------------------------------------------------------------------------------------------------------

// Only where a number was not asked for, and on the CPU: a GPU's threads wait for it, which looks like waiting for a
// core.
void Engine::set_threads(const EngineOptions & options) {
    const TargetOptions & known = target_->options();
    const bool is_fixed = options.n_threads > 0 || !target_->model().is_cpu();
    threads_ = ThreadPolicy(known.n_threads, known.n_threads_batch, is_fixed, is_fixed || options.n_threads_batch > 0);
    load_.free_cores(now_ms());
}

// Runs batch_ with the threads that are best now.
void Engine::run(ThreadPolicy::Kind kind) {
    double now = now_ms();
    const double free_cores = load_.free_cores(now);
    if (free_cores >= 0.0) threads_.hear_free(free_cores, now);
    ThreadPolicy::Run run;
    run.kind = kind;
    run.n_rows = batch_.n_rows();
    run.n_threads = threads_.choose(kind, run.n_rows, now);
    target_->set_n_threads(run.n_threads);
    now = now_ms();
    const double cpu_ms = process_cpu_ms();
    target_->decode(batch_, /*is_prompt=*/kind == ThreadPolicy::Kind::prompt);
    const double end = now_ms();
    run.wall_ms = end - now;
    run.cpu_ms = cpu_ms < 0.0 ? cpu_ms : process_cpu_ms() - cpu_ms;
    threads_.learn(run, end);
    note_order();
}

// --- verify, match, commit -------------------------------------------------------------------------------------------

// Trees come first, so that each lies in one of llama.cpp's batches.
double Engine::verify(std::vector<Round> & rounds, const std::vector<Sequence *> & reading,
                      std::vector<Slice> & slices) {
    const double start = now_ms();
    for (Round & r : rounds) {
        if (r.seq->exactness != Exactness::off && !exact_rows_.allows(r.seq->n_lost + r.tree.size())) run_lost(*r.seq);
    }
    batch_.clear();
    for (Round & r : rounds) {
        add_lost(*r.seq, r.seq->n_lost);
        if (r.tree.size() > 1) target_->cells().remember(r.seq->range);
        r.row = batch_.add_tree(r.tree, r.seq->n_past, r.seq->range);
    }
    slices = cut_slices(reading);
    for (Slice & slice : slices) {
        slice.row = batch_.n_rows();
        add_rows(slice);
    }
    run(slices.empty() ? ThreadPolicy::Kind::decode : ThreadPolicy::Kind::prompt);
    const double ms = now_ms() - start;
    for (Round & r : rounds) r.seq->stats.verify_ms += ms;
    note_exactness(rounds);
    if (!exact_rows_.allows(batch_.n_rows())) {
        for (const Slice & slice : slices) slice.seq->mark_inexact(slice.seq->n_past);
    }
    return ms;
}

// The first n of the accepted rows that went with rejected ones, before whatever comes next.
void Engine::add_lost(const Sequence & s, int n) {
    const int first = s.n_past - s.n_lost;
    for (int pos = first; pos < first + n; ++pos) {
        batch_.add(s.tokens[pos], pos, s.range, target_->needs_all_outputs());
    }
}

// All of them by themselves, in batches that are exact.
void Engine::run_lost(Sequence & s) {
    const int n_each = exact_rows_.allows(s.n_lost) ? s.n_lost : 1;
    while (s.n_lost > 0) {
        batch_.clear();
        add_lost(s, n_each);
        run(ThreadPolicy::Kind::decode);
        s.n_lost -= n_each;
    }
}

void Engine::note_exactness(const std::vector<Round> & rounds) {
    const bool is_exact = exact_rows_.allows(batch_.n_rows());
    for (const Round & r : rounds) {
        if (is_exact && (r.tree.is_chain() || target_->keeps_order())) continue;
        r.seq->mark_inexact(r.seq->n_past - r.seq->n_lost);
    }
}

// Where the order of cells was given up, whatever comes next may fill gaps anywhere.
void Engine::note_order() {
    if (target_->cells().n_order_lost() == n_order_lost_) return;
    n_order_lost_ = target_->cells().n_order_lost();
    for (auto & [id, s] : sequences_) s.mark_inexact(0);
}

ExactRows Engine::measure_exact_rows() {
    Use use(*this);
    if (!sequences_.empty()) fail(ErrorKind::value, "exact rows are measured before a conversation is opened");
    ExactRows out;
    if (can_draft() && !*target_->model().never_exact()) {
        const TargetOptions & o = target_->options();
        const int n_rows_max = o.n_sequences * (o.n_draft_max + 1);
        // prompts share batches where there are several conversations
        const int n_batch = n_rows_max + (target_->rounds_alike() ? target_->n_shared_rows() : 0);
        out = attempt([&] { return eaglecpp::measure_exact_rows(*target_, n_rows_max, n_batch); },
                      [&] { target_->cells().clear(); });
    }
    set_exact_rows(out.counts);
    return out;
}

void Engine::set_exact_rows(const RowCounts & counts) {
    exact_rows_ = counts;
    planner_.set_exact_rows(counts);
}

StepResult Engine::finish_round(const Round & round) {
    Sequence & s = *round.seq;
    StepResult out = result_of(s, "decode");
    bool is_eog = false;
    const int n_tokens = (int)s.tokens.size();
    int n_left = s.n_max - n_tokens;
    const MatchResult result = match(round.tree, [&](int node) {
        const int row = round.row + node;
        const Pos pos = n_tokens + round.tree.depth[node];
        const float * logits = s.n_picked > 0 ? nullptr : target_->logits(row);
        const Token sampled = s.n_picked == 1   ? target_->picks().best(row)
                              : s.n_picked == 0 ? s.sampler->sample(logits, pos)
                                                : s.sampler->sample(target_->picks().top(row), pos);
        const Token token = s.synth ? synthetic(round, node, sampled) : sampled;
        s.sampler->accept(token, /*is_own=*/token == sampled);
        if (s.params.n_probs > 0) {
            const int n_vocab = target_->vocab().size();
            out.logprobs.push_back(
                {logits[token] - log_sum_exp(logits, n_vocab), top_k(logits, n_vocab, s.params.n_probs, nullptr)});
        }
        is_eog = !s.params.ignore_eos && target_->vocab().is_eog(token);
        return Choice{token, is_eog || --n_left == 0};
    });
    if (s.uses_text) count_text(s, result);
    commit_round(s, round, result);
    out.tokens = result.tokens;
    for (size_t i = 0; i < result.tokens.size(); ++i) out.accepted.push_back((int)i < result.n_accepted());
    out.n_prompt_done = s.n_prompt;
    if (is_eog) {
        out.finish = "stop";
    } else if ((int)s.tokens.size() >= s.n_max) {
        out.finish = "length";
    }
    if (!out.finish.empty()) s.is_active = false;
    return out;
}

void Engine::count_text(Sequence & s, const MatchResult & result) {
    if (s.n_past < s.n_prompt) return;  // the first token comes with the prefill
    for (int node = 1; node < s.plan.tree().size(); ++node) s.stats.n_text += s.plan.is_from_text(node);
    for (int32_t node : result.nodes) s.stats.n_text_accepted += s.plan.is_from_text(node);
}

// What synthetic acceptance emits at a node in place of the target's own token. The first token of an answer comes
// with the prefill, before anything was proposed.
Token Engine::synthetic(const Round & round, int node, Token sampled) const {
    const Sequence & s = *round.seq;
    const int pool_node = s.n_past < s.n_prompt ? -1 : s.plan.pool_node(node);
    if (pool_node < 0) return sampled;
    const Pos pos = s.n_past + round.tree.depth[node] + 1;
    return s.synth->choose(s.plan.pool(), pool_node, sampled, pos, target_->vocab().size(),
                           [this](Token token) { return target_->vocab().is_eog(token); });
}

// Everything that makes the round's tokens history, in one place; nothing in here can fail halfway for a reason other
// than memory.
void Engine::commit_round(Sequence & s, const Round & round, const MatchResult & result) {
    if (s.draft) {
        std::vector<int32_t> rows;
        for (int32_t node : result.nodes) rows.push_back(round.row + node);
        // A stopped walk may end on an accepted node whose own next token is unknown; its row stays pending as any last
        // row does.
        const FeatureRows features = target_->features();
        s.pending.add(features, rows);
        for (size_t i = 0; i < rows.size(); ++i) s.recent.add(s.n_past + (int)i, features, rows[i]);
    }
    const bool is_kept = target_->cells().keep_path(s.range, round.tree, result.nodes.back(), s.n_past);
    s.n_lost = is_kept ? 0 : s.n_lost + (int)result.nodes.size();
    const bool is_first = s.n_past < s.n_prompt;  // the forward was the prefill's
    s.n_past += (int)result.nodes.size();
    s.tokens.insert(s.tokens.end(), result.tokens.begin(), result.tokens.end());
    if (s.uses_text) {
        for (Token token : result.tokens) s.text.add(token);
    }
    s.stats.count(round.tree, result, is_first);
    s.stats.predicted_ms = now_ms() - s.decode_start_ms;
}

}  // namespace eaglecpp
