// SPDX-License-Identifier: MIT
#include "engine/rounds.h"

#include <algorithm>

#include "algo/noise.h"
#include "algo/topk.h"
#include "base/types.h"

namespace eaglecpp {

Rounds::Rounds(const EngineOptions & options, Models & models, Planner & planner, Conversations & conversations,
               const RowCounts & exact_rows)
    : target_(*models.target),
      models_(models),
      planner_(planner),
      conversations_(conversations),
      exact_rows_(exact_rows),
      drafting_(options.draft_window, models, planner) {
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
    draft(decoding, /*is_timed=*/reading.empty());
    std::vector<Sequence *> slices;
    const double verify_ms = verify(decoding, reading, slices);
    const size_t n_before = results.size();
    for (Sequence * s : decoding) {
        results.push_back(finish_round(*s));
        if (is_planned_) planner_.learn(s->plan, results.back().tokens);
    }
    const double round_ms = now_ms() - start;
    const bool is_timed = threads_.is_timed() && reading.empty();
    if (is_planned_ && is_timed) planner_.end_round(verify_ms, round_ms);
    if (is_planned_ && !is_timed) planner_.end_untimed_round();
    for (size_t i = 0; is_planned_ && i < decoding.size(); ++i) {
        Sequence & s = *decoding[i];
        const Decision & decision = s.plan.decision();
        if (s.params.log_plan) {
            s.plan_log.push_back(decision.to_line() + strf(" verify_ms=%.3f ms=%.3f", verify_ms, round_ms));
        }
        s.plan_summary.add(decision, (int)results[n_before + i].tokens.size(), planner_.charged());
    }
    for (Sequence * s : slices) results.push_back(finish_slice(*s, start));
    for (Sequence * s : reading) {
        if (std::count(slices.begin(), slices.end(), s) > 0) continue;
        // If the drafts leave no room for prompts, the first prompt gets a separate batch. So this prompt always makes
        // progress.
        const bool is_next = slices.empty() && s == reading.front();
        results.push_back(is_next ? prefill(*s) : result_of(*s, "prefill"));
    }
    return results;
}

// Plans and drafts a round: sets the tree to verify of each conversation.
void Rounds::draft(const std::vector<Sequence *> & sequences, bool is_timed) {
    if (models_.drafter) models_.drafter->set_n_threads(n_threads());
    const auto forces = [](const Sequence * s) { return s->forces; };
    is_planned_ = models_.can_draft() || std::any_of(sequences.begin(), sequences.end(), forces);
    for (Sequence * s : sequences) s->plan.round.begin(s->tokens.back());
    if (!is_planned_) return;
    planner_.begin_round((int)sequences.size(), is_timed);
    drafting_.plan(sequences);
    drafting_.draft(sequences);
    planner_.choose(plans_of(sequences));
}

StepResult Rounds::result_of(const Sequence & s, const char * phase) const {
    StepResult r;
    r.sequence = s.id;
    r.phase = phase;
    r.n_prompt = s.n_prompt;
    r.n_prompt_done = std::min(s.n_past, s.n_prompt);
    return r;
}

// The planner learns the cost of the measured batches, so it knows costs before the first answer.
void Rounds::measure_exact_rows(const SeqRange & range, Progress & progress, ExactRows & rows) {
    const auto decode = [&](TargetBatch & batch, bool is_prompt, int n_alike) {
        if (!progress.go_on()) return false;
        const double start = now_ms();
        run(batch, is_prompt ? ThreadPolicy::Kind::prompt : ThreadPolicy::Kind::decode);
        if (!is_prompt && threads_.is_timed()) planner_.learn_decode(n_alike, batch.n_rows(), now_ms() - start);
        return true;
    };
    const TargetOptions & o = target_.options();
    const int n_rows_max = o.n_sequences * (o.n_draft_max + 1);
    // With several conversations, prompt rows share batches with rounds.
    const int n_batch = n_rows_max + (target_.rounds_alike() ? target_.n_shared_rows() : 0);
    eaglecpp::measure_exact_rows(target_, range, n_rows_max, n_batch, decode, rows);
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
        const int n_rows = std::min(n_max, s.n_rows_alike());
        s.plan.round.n_prompt_rows = n_rows;
        batch_.clear();
        add_rows(s);
        if (!target_.prepare_prompt(s.range, n_rows)) s.mark_inexact(s.n_past);
        run(batch_, ThreadPolicy::Kind::prompt);
        // With widens_last_block(), the last block and the output head run for all rows of the slice, not only for the
        // last row. Their rounding then depends on the number of rows.
        if (target_.widens_last_block() && s.ends_prompt() && !exact_rows_.allows(n_rows)) {
            s.mark_inexact(s.n_past + n_rows - 1);
        }
        result = finish_slice(s, start);
        start = now_ms();
    }
    return result;
}

// Adds the slice of a prompt to the batch.
void Rounds::add_rows(Sequence & s) {
    const Image * image = s.image();
    const int n_rows = s.plan.round.n_prompt_rows;
    s.plan.round.first_row = batch_.n_rows();
    for (int i = 0; i < n_rows; ++i) {
        const bool output = target_.needs_all_outputs() || (s.ends_prompt() && i == n_rows - 1);
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
StepResult Rounds::finish_slice(Sequence & s, double start_ms) {
    const bool is_last = s.ends_prompt();
    const int first = s.plan.round.first_row;
    const int n_known = s.plan.round.n_prompt_rows - is_last;  // number of rows whose next token is known
    if (s.draft) commit_prefilled(s, first, n_known);
    s.n_past += n_known;
    s.stats.prompt_ms += now_ms() - start_ms;
    StepResult result = result_of(s, "prefill");
    if (is_last) {
        s.decode_start_ms = now_ms();
        s.plan.round.begin(s.tokens.back());
        s.plan.round.first_row = first + n_known;
        result = finish_round(s);
    }
    conversations_.set_checkpoint(s);
    return result;
}

// Commits the pending rows to the drafter, then rows [row, row + n_rows) of the last decode.
void Rounds::commit_prefilled(Sequence & s, int row, int n_rows) {
    HiddenStates hidden_states = target_.hidden_states().from(row, models_.draft_traits.n_embd_target);
    drafting_.set_window(s);
    s.commit_pending();
    hidden_states.n_rows = n_rows;
    if (n_rows > 0) s.draft->commit(hidden_states, &s.tokens[s.draft->n_rows() + 1]);
    s.hidden_states.restart(s.n_past + n_rows);
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
double Rounds::verify(const std::vector<Sequence *> & decoding, const std::vector<Sequence *> & reading,
                      std::vector<Sequence *> & slices) {
    const double start = now_ms();
    for (Sequence * s : decoding) {
        const int n_rows = s->n_replay + s->plan.tree().size();
        if (s->exactness != Exactness::off && !exact_rows_.allows(n_rows)) replay(*s);
    }
    batch_.clear();
    for (Sequence * s : decoding) {
        const DraftTree & tree = s->plan.tree();
        add_replay(*s, s->n_replay);
        if (tree.size() > 1) target_.cells().remember(s->range);
        s->plan.round.first_row = batch_.add_tree(tree, target_.cells().pos(s->range, s->n_past), s->range);
    }
    slices = cut(reading, batch_.n_rows());
    for (Sequence * s : slices) add_rows(*s);
    if (is_planned_ && slices.empty()) batch_.pad(planner_.n_padding());
    run(batch_, slices.empty() ? ThreadPolicy::Kind::decode : ThreadPolicy::Kind::prompt);
    const double ms = now_ms() - start;
    for (Sequence * s : decoding) s->stats.verify_ms += ms;
    note_exactness(decoding);
    if (!exact_rows_.allows(batch_.n_rows())) {
        for (Sequence * s : slices) s->mark_inexact(s->n_past);
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

void Rounds::note_exactness(const std::vector<Sequence *> & decoding) {
    const bool is_exact = exact_rows_.allows(batch_.n_rows());
    for (Sequence * s : decoding) {
        if (is_exact && (s->plan.tree().is_chain() || target_.keeps_order())) continue;
        s->mark_inexact(s->n_past - s->n_replay);
    }
}

StepResult Rounds::finish_round(Sequence & s) {
    StepResult out = result_of(s, "decode");
    const MatchResult result = accept(s, out);
    if (s.uses_text || s.forces) count_text(s, result);
    commit(s, result);
    out.tokens = result.tokens;
    for (size_t i = 0; i < result.tokens.size(); ++i) out.accepted.push_back((int)i < result.n_accepted());
    out.n_prompt_done = s.n_prompt;
    if (out.finish.empty() && (int)s.tokens.size() >= s.n_max) out.finish = "length";
    if (!out.finish.empty()) s.is_active = false;
    return out;
}

// Returns the longest path of drafted tokens that the target chooses, and one more token.
MatchResult Rounds::accept(Sequence & s, StepResult & out) {
    int n_left = s.n_max - (int)s.tokens.size();
    return match(s.plan.tree(), [&](int node) {
        std::optional<Choice> choice = choose(s, node, out);
        if (choice && choice->stop) out.finish = "stop";
        if (choice) choice->stop = choice->stop || --n_left == 0;
        return choice;
    });
}

// Returns the target's choice at a node. Choice::stop is set if the token ends the text. Returns nullopt if the sampler
// fails because of its own request. In this case the tokens accepted before the failure are kept, and the other
// requests of the round continue.
std::optional<Choice> Rounds::choose(Sequence & s, int node, StepResult & out) {
    const int row = s.plan.round.first_row + node;
    const Pos pos = (Pos)s.tokens.size() + s.plan.tree().depth[node];
    const float * logits = s.n_picked > 0 ? nullptr : target_.logits(row);
    Token token = -1;
    try {
        const Token sampled = s.n_picked == 1  ? target_.picks().top(row).tokens[0]
                              : s.n_picked > 0 ? s.sampler->sample(target_.picks().top(row), pos)
                                               : s.sampler->sample(logits, pos);
        token = s.params.synth_rates.empty() ? sampled : synthetic(s, node, sampled);
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
Token Rounds::synthetic(const Sequence & s, int node, Token sampled) const {
    const DraftTree & pool = s.plan.pool();
    if (s.n_past < s.n_prompt) return sampled;
    const int at = s.plan.pool_node(node);
    const auto child = std::find(pool.parent.begin() + 1, pool.parent.end(), at);
    if (at < 0 || child == pool.parent.end()) return sampled;
    const std::vector<double> & rates = s.params.synth_rates;
    const size_t depth = pool.depth[at];
    const double above = depth > 0 && depth <= rates.size() ? rates[depth - 1] : 1.0;
    const double rate = depth < rates.size() && above > 0.0 ? rates[depth] / above : 0.0;
    const Pos pos = s.n_past + s.plan.tree().depth[node] + 1;
    if (Noise(s.params.sampling.seed, pos).uniform() < rate) return pool.token[child - pool.parent.begin()];
    while (pool.child(at, sampled) >= 0) sampled = (sampled + 1) % target_.vocab().size();
    return sampled;
}

// Applies the result of a round to the conversation. commit() can fail halfway only if memory is short.
void Rounds::commit(Sequence & s, const MatchResult & result) {
    const DraftTree & tree = s.plan.tree();
    if (s.draft) {
        std::vector<int32_t> rows;
        for (int32_t node : result.nodes) rows.push_back(s.plan.round.first_row + node);
        // If matching stopped at an accepted node, the next token may be unknown. The row of this node stays pending,
        // like the last row of every round.
        s.hidden_states.add(s.n_past, target_.hidden_states(), rows);
        s.hidden_states.drop_before(s.draft->n_rows());
    }
    const bool is_kept = target_.cells().keep_path(s.range, tree, result.nodes.back(), s.n_past);
    s.n_replay = is_kept ? 0 : s.n_replay + (int)result.nodes.size();
    const bool is_first = s.n_past < s.n_prompt;  // the prefill ran these rows
    s.n_past += (int)result.nodes.size();
    s.tokens.insert(s.tokens.end(), result.tokens.begin(), result.tokens.end());
    if (s.uses_text) {
        for (Token token : result.tokens) s.text.add(token);
    }
    const auto [n_tried, n_accepted] = s.stats.count(tree, result, is_first);
    drafting_.learn(s, n_tried, n_accepted);
    s.stats.predicted_ms = now_ms() - s.decode_start_ms;
}

}  // namespace eaglecpp
