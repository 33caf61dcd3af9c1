// SPDX-License-Identifier: MIT
#include "engine/rounds.h"

#include <algorithm>

#include "algo/noise.h"
#include "algo/topk.h"
#include "base/error.h"
#include "base/types.h"

namespace eaglecpp {

Rounds::Rounds(const EngineOptions & options, Models & models, Planner & planner, Conversations & conversations,
               const RowCounts & exact_rows)
    : target_(*models.target),
      drafter_(models.drafter.get()),
      can_draft_(models.can_draft()),
      n_embd_target_(models.draft_traits.n_embd_target),
      planner_(planner),
      conversations_(conversations),
      exact_rows_(exact_rows),
      drafting_(models, planner) {
    // The number of threads adapts only on the CPU, and only if the user did not set it. With a GPU, threads that wait
    // for the GPU look like threads that wait for a core.
    const TargetOptions & known = target_.options();
    const bool is_fixed = options.n_threads > 0 || !target_.model().is_cpu();
    threads_ = ThreadPolicy(known.n_threads, known.n_threads_batch, is_fixed, is_fixed || options.n_threads_batch > 0);
    load_.free_cores(now_ms());
}

// Splits the sequences by phase: prefill or decode. Adds a result for each sequence that is in neither phase.
void Rounds::sort(const std::vector<Sequence *> & sequences, std::vector<Sequence *> & reading,
                  std::vector<Sequence *> & decoding, std::vector<StepResult> & results) {
    for (Sequence * s : sequences) {
        if (s->failure || s->n_past + 1 >= s->n_max) {
            s->is_active = false;
            results.push_back(result_of(*s, "decode"));
            results.back().error = s->failure;
            if (!s->failure) results.back().finish = "length";
        } else if (s->is_prefilling()) {
            const bool is_begun = s->n_past > s->stats.n_reused;
            if (!is_begun && can_adopt(*s)) conversations_.adopt(*s);
            if (!is_begun && waits_for(*s, reading)) {
                results.push_back(result_of(*s, "prefill"));
            } else {
                reading.push_back(s);
            }
        } else {
            decoding.push_back(s);
        }
    }
}

// Runs the rounds of all decoding conversations as one batch, together with as many prompt tokens as the batch allows.
std::vector<StepResult> Rounds::step(const std::vector<Sequence *> & sequences) {
    std::vector<StepResult> results;
    std::vector<Sequence *> reading, decoding;
    sort(sequences, reading, decoding, results);
    if (decoding.empty() || !can_share(reading, decoding)) {
        int n_left = target_.n_shared_rows();
        for (Sequence * s : reading) {
            const int n_past = s->n_past;
            const bool is_read = s == reading.front() || s->n_prompt - n_past <= n_left;
            results.push_back(is_read ? prefill(*s) : result_of(*s, "prefill"));
            n_left -= s->n_past - n_past;
        }
        reading.clear();
    }
    if (decoding.empty()) return results;
    const double start = now_ms();
    std::vector<BatchPart> rounds = draft(decoding, /*is_timed=*/reading.empty()), slices;
    const double verify_ms = verify(rounds, reading, slices);
    const size_t n_before = results.size();
    for (const BatchPart & r : rounds) {
        results.push_back(finish_round(r));
        if (is_planned_) planner_.learn(r.seq->plan, results.back().tokens);
    }
    const double round_ms = now_ms() - start;
    const bool is_timed = threads_.is_timed() && reading.empty();
    if (is_planned_ && is_timed) planner_.end_round(verify_ms, round_ms);
    if (is_planned_ && !is_timed) planner_.end_untimed_round();
    for (size_t i = 0; is_planned_ && i < rounds.size(); ++i) {
        Sequence & s = *rounds[i].seq;
        const Decision & decision = s.plan.decision();
        if (s.params.log_plan) {
            s.plan_log.push_back(decision.to_line() + strf(" verify_ms=%.3f ms=%.3f", verify_ms, round_ms));
        }
        s.plan_summary.add(decision, (int)results[n_before + i].tokens.size(), planner_.charged());
    }
    for (const BatchPart & slice : slices) results.push_back(finish_slice(slice, start));
    for (Sequence * s : reading) {
        const auto is_its = [&](const BatchPart & slice) { return slice.seq == s; };
        if (std::any_of(slices.begin(), slices.end(), is_its)) continue;
        // If the drafts leave no room for prompts, the first prompt gets a separate batch. So this prompt always makes
        // progress.
        const bool is_next = slices.empty() && s == reading.front();
        results.push_back(is_next ? prefill(*s) : result_of(*s, "prefill"));
    }
    return results;
}

// Plans and drafts a round. Returns one part of the batch to verify for each conversation.
std::vector<BatchPart> Rounds::draft(const std::vector<Sequence *> & sequences, bool is_timed) {
    if (drafter_) drafter_->set_n_threads(n_threads());
    const auto forces = [](const Sequence * s) { return s->forces; };
    is_planned_ = can_draft_ || std::any_of(sequences.begin(), sequences.end(), forces);
    if (is_planned_) {
        planner_.set_n_threads(n_threads());
        planner_.begin_round((int)sequences.size(), is_timed);
        drafting_.plan(sequences);
        drafting_.draft(sequences);
        std::vector<SequencePlan *> plans;
        for (Sequence * s : sequences) plans.push_back(&s->plan);
        planner_.choose(plans);
    }
    std::vector<BatchPart> out;
    for (Sequence * s : sequences) {
        out.push_back({s, 0, 0, is_planned_ ? s->plan.tree() : DraftTree(s->tokens.back())});
    }
    return out;
}

StepResult Rounds::result_of(const Sequence & s, const char * phase) const {
    StepResult r;
    r.sequence = s.id;
    r.phase = phase;
    r.n_prompt = s.n_prompt;
    r.n_prompt_done = std::min(s.n_past, s.n_prompt);
    return r;
}

// Measures which numbers of rows are exact. The planner learns the cost of these batches, so it knows costs before the
// first answer.
ExactRows Rounds::measure_exact_rows(const SeqRange & range, int n_rows_max, int n_batch_max, Progress & progress) {
    const auto decode = [&](TargetBatch & batch, bool is_prompt, int n_alike) {
        if (!progress.go_on()) fail(ErrorKind::value, "cancelled");
        planner_.set_n_threads(n_threads());
        const double start = now_ms();
        run(batch, is_prompt ? ThreadPolicy::Kind::prompt : ThreadPolicy::Kind::decode);
        if (!is_prompt && threads_.is_timed()) planner_.learn_decode(n_alike, batch.n_rows(), now_ms() - start);
    };
    return eaglecpp::measure_exact_rows(target_, range, n_rows_max, n_batch_max, decode);
}

// --- prefill -------------------------------------------------------------------------------------------------------

// Runs one slice of the prompt. The slice's batches have the configured size with any drafter, because the batch size
// decides which kernels compute the rows. The last prompt token gives the first token of the answer, like a round
// without drafts.
StepResult Rounds::prefill(Sequence & s) {
    double start = now_ms();
    int n_slice_end = std::min(s.n_past + target_.n_slice(), s.prompt_end());
    const int n_checkpoint = target_.cells().has_state() ? conversations_.last_checkpoint(s) : 0;
    if (n_checkpoint > s.n_past) n_slice_end = std::min(n_slice_end, n_checkpoint);
    StepResult result = result_of(s, "prefill");
    while (s.n_past < n_slice_end && result.phase == "prefill") {
        const Image * image = s.image();
        const bool is_whole = image && image->is_whole;
        const int n_max = is_whole ? image->n_rows : std::min(target_.n_prompt_rows(), n_slice_end - s.n_past);
        const BatchPart slice{&s, std::min(n_max, s.n_rows_alike())};
        batch_.clear();
        add_rows(slice);
        if (!target_.prepare_prompt(s.range, slice.n_rows)) s.mark_inexact(s.n_past);
        run(batch_, ThreadPolicy::Kind::prompt);
        // With widens_last_block(), the last block and the output head run for all rows of the slice, not only for the
        // last row. Their rounding then depends on the number of rows.
        if (target_.widens_last_block() && slice.is_last() && !exact_rows_.allows(slice.n_rows)) {
            s.mark_inexact(s.n_past + slice.n_rows - 1);
        }
        result = finish_slice(slice, start);
        start = now_ms();
    }
    return result;
}

void Rounds::add_rows(const BatchPart & slice) {
    const Sequence & s = *slice.seq;
    const Image * image = s.image();
    for (int i = 0; i < slice.n_rows; ++i) {
        const bool output = target_.needs_all_outputs() || (slice.is_last() && i == slice.n_rows - 1);
        const Token token = s.tokens[s.n_past + i];
        const Pos pos = target_.cells().pos(s.range, s.n_past + i);
        if (image) {
            batch_.add_image_row(image->row(token), target_.model().n_embd_inp(), pos, pos + image->line(token),
                                 pos + image->column(token), s.range, output, image->is_whole);
        } else {
            batch_.add(token, pos, s.range, output);
        }
    }
}

// Ends a slice of the prompt. Call this function after the slice's batch has run.
StepResult Rounds::finish_slice(const BatchPart & slice, double start_ms) {
    Sequence & s = *slice.seq;
    const bool is_last = slice.is_last();
    const int n_known = is_last ? slice.n_rows - 1 : slice.n_rows;  // number of rows whose next token is known
    if (s.draft) commit_prefilled(s, slice.first, n_known);
    s.n_past += n_known;
    s.stats.prompt_ms += now_ms() - start_ms;
    StepResult result = result_of(s, "prefill");
    if (is_last) {
        s.decode_start_ms = now_ms();
        result = finish_round({&s, 0, slice.first + slice.n_rows - 1, DraftTree(s.tokens.back())});
    }
    conversations_.set_checkpoint(s);
    return result;
}

// Commits the pending rows to the drafter, then rows [row, row + n_rows) of the last decode.
void Rounds::commit_prefilled(Sequence & s, int row, int n_rows) {
    HiddenStates hidden_states = target_.hidden_states().from(row, n_embd_target_);
    s.commit_pending();
    hidden_states.n_rows = n_rows;
    if (n_rows > 0) s.draft->commit(hidden_states, &s.tokens[s.draft->n_rows() + 1]);
    s.hidden_states.add_last(s.n_past, hidden_states, n_rows);
    s.hidden_states.trim(s.draft->n_rows());
}

// --- verify, accept, commit -----------------------------------------------------------------------------------------

void Rounds::run(TargetBatch & batch, ThreadPolicy::Kind kind) {
    double now = now_ms();
    const double free_cores = load_.free_cores(now);
    if (free_cores >= 0.0) threads_.hear_free(free_cores, now);
    target_.set_n_threads(threads_.n_threads(kind));
    now = now_ms();
    const double cpu_ms = process_cpu_ms();
    target_.decode(batch, /*is_prompt=*/kind == ThreadPolicy::Kind::prompt);
    const double end = now_ms();
    threads_.learn({kind, batch.n_rows(), end - now, process_cpu_ms() - cpu_ms}, end);
    conversations_.note_order();
}

// Runs the batch of a round. Trees come before prompt slices, so that each tree is within one ubatch of llama.cpp.
double Rounds::verify(std::vector<BatchPart> & rounds, const std::vector<Sequence *> & reading,
                      std::vector<BatchPart> & slices) {
    const double start = now_ms();
    for (BatchPart & r : rounds) {
        if (r.seq->exactness != Exactness::off && !exact_rows_.allows(r.seq->n_replay + r.tree.size())) replay(*r.seq);
    }
    batch_.clear();
    for (BatchPart & r : rounds) {
        add_replay(*r.seq, r.seq->n_replay);
        if (r.tree.size() > 1) target_.cells().remember(r.seq->range);
        r.first = batch_.add_tree(r.tree, target_.cells().pos(r.seq->range, r.seq->n_past), r.seq->range);
    }
    slices = cut(reading, batch_.n_rows());
    for (BatchPart & slice : slices) {
        slice.first = batch_.n_rows();
        add_rows(slice);
    }
    if (is_planned_ && slices.empty()) batch_.pad(planner_.n_padding());
    run(batch_, slices.empty() ? ThreadPolicy::Kind::decode : ThreadPolicy::Kind::prompt);
    const double ms = now_ms() - start;
    for (BatchPart & r : rounds) r.seq->stats.verify_ms += ms;
    note_exactness(rounds);
    if (!exact_rows_.allows(batch_.n_rows())) {
        for (const BatchPart & slice : slices) slice.seq->mark_inexact(slice.seq->n_past);
    }
    return ms;
}

// Adds the first n rows that the target must run again. These rows are accepted tokens whose state was lost together
// with rejected tokens.
void Rounds::add_replay(const Sequence & s, int n) {
    const int first = s.n_past - s.n_replay;
    for (int i = first; i < first + n; ++i) {
        batch_.add(s.tokens[i], target_.cells().pos(s.range, i), s.range, target_.needs_all_outputs());
    }
}

void Rounds::replay(Sequence & s) {
    const int n_each = exact_rows_.allows(s.n_replay) ? s.n_replay : 1;
    while (s.n_replay > 0) {
        batch_.clear();
        add_replay(s, n_each);
        run(batch_, ThreadPolicy::Kind::decode);
        s.n_replay -= n_each;
    }
}

void Rounds::note_exactness(const std::vector<BatchPart> & rounds) {
    const bool is_exact = exact_rows_.allows(batch_.n_rows());
    for (const BatchPart & r : rounds) {
        if (is_exact && (r.tree.is_chain() || target_.keeps_order())) continue;
        r.seq->mark_inexact(r.seq->n_past - r.seq->n_replay);
    }
}

StepResult Rounds::finish_round(const BatchPart & round) {
    Sequence & s = *round.seq;
    StepResult out = result_of(s, "decode");
    const MatchResult result = accept(round, out);
    if (s.uses_text || s.forces) count_text(s, result);
    commit(round, result);
    out.tokens = result.tokens;
    for (size_t i = 0; i < result.tokens.size(); ++i) out.accepted.push_back((int)i < result.n_accepted());
    out.n_prompt_done = s.n_prompt;
    if (out.finish.empty() && (int)s.tokens.size() >= s.n_max) out.finish = "length";
    if (!out.finish.empty()) s.is_active = false;
    return out;
}

// Returns the longest path of drafted tokens that the target chooses, and one more token.
MatchResult Rounds::accept(const BatchPart & round, StepResult & out) {
    Sequence & s = *round.seq;
    int n_left = s.n_max - (int)s.tokens.size();
    return match(round.tree, [&](int node) {
        std::optional<Choice> choice = choose(s, node, round, out);
        if (choice && choice->stop) out.finish = "stop";
        if (choice) choice->stop = choice->stop || --n_left == 0;
        return choice;
    });
}

// Returns the target's choice at a node. Choice::stop is set if the token ends the text. Returns nullopt if the sampler
// fails because of its own request. In this case the tokens accepted before the failure are kept, and the other
// requests of the round continue.
std::optional<Choice> Rounds::choose(Sequence & s, int node, const BatchPart & round, StepResult & out) {
    const int row = round.first + node;
    const Pos pos = (Pos)s.tokens.size() + round.tree.depth[node];
    const float * logits = s.n_picked > 0 ? nullptr : target_.logits(row);
    Token token = -1;
    try {
        const Token sampled = s.n_picked == 1  ? target_.picks().top(row).tokens[0]
                              : s.n_picked > 0 ? s.sampler->sample(target_.picks().top(row), pos)
                                               : s.sampler->sample(logits, pos);
        token = s.params.synth_rates.empty() ? sampled : synthetic(round, node, sampled);
        s.sampler->accept(token, /*is_own=*/token == sampled);
    } catch (const Error & e) {
        if (e.kind != ErrorKind::grammar && e.kind != ErrorKind::value) throw;
        s.failure.emplace(e);
        return std::nullopt;
    }
    if (s.params.n_probs > 0) {
        const int n_vocab = target_.vocab().size();
        out.logprobs.push_back(
            {logits[token] - log_sum_exp(logits, n_vocab), top_k(logits, n_vocab, s.params.n_probs, nullptr)});
    }
    return Choice{token, !s.params.ignore_eos && target_.vocab().is_eog(token)};
}

void Rounds::count_text(Sequence & s, const MatchResult & result) {
    if (s.n_past < s.n_prompt) return;  // the first token of an answer belongs to the prefill
    for (int node = 1; node < s.plan.tree().size(); ++node) s.stats.n_text += s.plan.is_from_text(node);
    for (int32_t node : result.nodes) s.stats.n_text_accepted += s.plan.is_from_text(node);
}

// Returns the token that a node emits with GenerateParams::synth_rates. It is the node's first (likeliest) child or, if
// this child is rejected, `sampled`. If `sampled` is the token of a child, the next token that no child has replaces
// it. Each position has one random draw, so that all strategies have the same acceptance. The first token of an answer
// comes from the prefill, before any draft.
Token Rounds::synthetic(const BatchPart & round, int node, Token sampled) const {
    const Sequence & s = *round.seq;
    const DraftTree & pool = s.plan.pool();
    if (s.n_past < s.n_prompt) return sampled;
    const int at = s.plan.pool_node(node);
    const auto child = std::find(pool.parent.begin() + 1, pool.parent.end(), at);
    if (at < 0 || child == pool.parent.end()) return sampled;
    const std::vector<double> & rates = s.params.synth_rates;
    const size_t depth = pool.depth[at];
    const double above = depth > 0 && depth <= rates.size() ? rates[depth - 1] : 1.0;
    const double rate = depth < rates.size() && above > 0.0 ? rates[depth] / above : 0.0;
    const Pos pos = s.n_past + round.tree.depth[node] + 1;
    if (Noise(s.params.sampling.seed, pos).uniform() < rate) return pool.token[child - pool.parent.begin()];
    while (pool.child(at, sampled) >= 0) sampled = (sampled + 1) % target_.vocab().size();
    return sampled;
}

// Applies the result of a round to the conversation. commit() can fail halfway only if memory is short.
void Rounds::commit(const BatchPart & round, const MatchResult & result) {
    Sequence & s = *round.seq;
    if (s.draft) {
        std::vector<int32_t> rows;
        for (int32_t node : result.nodes) rows.push_back(round.first + node);
        // If matching stopped at an accepted node, the next token may be unknown. The row of this node stays pending,
        // like the last row of every round.
        s.hidden_states.add(s.n_past, target_.hidden_states(), rows);
        s.hidden_states.trim(s.draft->n_rows());
    }
    const bool is_kept = target_.cells().keep_path(s.range, round.tree, result.nodes.back(), s.n_past);
    s.n_replay = is_kept ? 0 : s.n_replay + (int)result.nodes.size();
    const bool is_first = s.n_past < s.n_prompt;  // the prefill ran these rows
    s.n_past += (int)result.nodes.size();
    s.tokens.insert(s.tokens.end(), result.tokens.begin(), result.tokens.end());
    if (s.uses_text) {
        for (Token token : result.tokens) s.text.add(token);
    }
    const auto [n_tried, n_accepted] = s.stats.count(round.tree, result, is_first);
    drafting_.learn(s, n_tried, n_accepted);
    s.stats.predicted_ms = now_ms() - s.decode_start_ms;
}

}  // namespace eaglecpp
