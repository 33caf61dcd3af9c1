// SPDX-License-Identifier: MIT
#include "algo/planner.h"

#include <cmath>
#include <functional>

namespace eaglecpp {

// --- one round ------------------------------------------------------------------------------------------------------

namespace {
// The first rounds measure a target-only step. Later measurements are n_refresh rounds apart.
constexpr int n_target_only_first = 3, n_refresh = 100;
// Maximum cost of a batch size's first use in target-only steps, and learning rate of this cost. The maximum must be
// below a full ledger; otherwise no batch size would ever be tried.
constexpr double first_use_max = 6.0, first_use_rate = 0.3;

// Largest multiple of the expected time that is charged. The excess counts as a stall of the machine, not as a cost of
// drafting.
constexpr double stall = 1.5;

constexpr double best_speed_rate = 0.1;
constexpr double sure_tokens = 2.0;   // a copy from the text with more expected tokens is verified without the drafter
constexpr int n_unverified_max = 16;  // unverified drafts before the cheapest draft is verified anyway
constexpr int n_nodes_max = 512;      // maximum number of nodes of all conversations together

double clean(double ms) {
    return std::isfinite(ms) && ms > 0.0 ? ms : 0.0;
}

}  // namespace

void BatchPart::begin(Token root) {
    decision.mode = Decision::Mode::target_only;
    decision.k = decision.depth = decision.n_leaves = decision.n_text = decision.n_forced = 0;
    decision.steps.clear();
    decision.nodes.clear();
    decision.n_tokens = decision.cost = 1.0;
    limits = {};
    n_left = n_pending = n_replay = n_committed = first_row = n_prompt_rows = 0;
    drafts_text = false;
    text_draft = {};
    tree.reset(root);
    frontier.clear();
    draft_ms_expected = 0.0;
}

void Planner::begin_request(SequencePlan & plan, RequestKind kind, bool is_same_conversation, Exactness exactness) {
    if (!is_same_conversation) end_text(plan);
    plan.exact = {exactness != Exactness::off, exactness != Exactness::automatic};
    plan.text.kind = kind;
    plan.round.cursor = -1;
    plan.size = {};
    n_rows_last_ = 0;
}

void Planner::end_text(SequencePlan & plan) {
    acceptance_.end_text(plan.text.kind, plan.text.drafter);
    plan.text.chain.hits = {};
}

void Planner::begin_round(int n_roots, bool is_timed) {
    n_roots_ = std::max(n_roots, 1);
    target_only_ms_ = std::max(costs_.target_only(n_roots_), 1e-6);
    round_draft_ms_ = 0.0;
    n_replay_ = n_padding_ = 0;
    is_calibrating_ = is_timed && is_calibration_due();
    is_exact_ = false;
    n_times_ = 1.0;
    drafting_.clear();
    plans_.clear();
}

bool Planner::is_calibration_due() const {
    if (!costs_.is_known(n_roots_)) return true;
    // A device measures when the engine is opened, because a change of size is expensive. Rounds of any size show later
    // changes of the machine's speed.
    if (options_.pads_rows) return false;
    if (n_target_only_ < n_target_only_first) return true;
    return n_since_target_only_ >= n_refresh;
}

// --- decide ---------------------------------------------------------------------------------------------------------

void Planner::decide(SequencePlan & plan) {
    BatchPart & round = plan.round;
    Decision & d = round.decision;
    d.best_speed = plan.text.best_speed;
    if (!plan.exact.is_settled) plan.exact = {is_exact_cheap(plan)};
    if (!options_.pads_rows || !is_change_dear() || !plan.is_auto())
        plan.size = {};
    else
        choose_size(plan);
    if (plan.exact.is_exact) round.limits.n_leaves = std::min(round.limits.n_leaves, round.limits.n_leaves_exact);
    is_exact_ = is_exact_ || plan.exact.is_exact;
    n_times_ = round.limits.replays ? 2.0 : n_times_;
    n_replay_ += round.n_replay;
    trim_text(plan);
    if (!round.has_drafter() && !round.drafts_text) {
        d.reason = Reason::off;
    } else if (round.n_replay > 0) {
        d.reason = Reason::replay;
    } else if (plan.exact.is_exact && !exact_rows_.allows_any(n_roots_, n_roots_ + round.limits.n_nodes)) {
        d.reason = Reason::inexact;
        plan.exact.cut = 0;
    } else if (round.n_left < 2 || round.limits.n_nodes < 1) {
        d.reason = Reason::room;
    } else if (!plan.is_auto()) {
        decide_fixed(plan);
    } else {
        round.depth_max = std::min({options_.depth, round.n_left - 1, round.limits.depth_max});
        decide_auto(plan);
    }
}

// Decides for the automatic strategy. Proposals copied from the text cost only rows to verify. If they gain more than
// they cost, they are verified together with the drafter's nodes. A likely copy is verified alone, because the
// drafter's nodes would add less than they cost. The drafter runs only if the ledger covers its cheapest draft, because
// a draft that cannot be verified is a loss.
void Planner::decide_auto(SequencePlan & plan) {
    BatchPart & round = plan.round;
    round.decision.reason = Reason::calibrating;
    if (is_calibrating_) return;
    open_cost_model(n_roots_, &plan);
    const double gain = text_gain(plan);  // of verifying only the copy
    const bool is_sure = gain * plan.text.recent.speed() >= sure_tokens;
    round.decision.reason = Reason::no_match;
    if (round.has_drafter() && !is_sure) {
        const int n = (int)drafting_.size() + 1;
        const double cost = rounds(costs_.commit(n * round.n_commit_rows()) + costs_.host());
        const double batch = keeps_size(plan) ? rounds(costs_.verify(plan.size.n_rows) - costs_.verify(n_roots_))
                                              : cost_model_.least(n) / n_roots_;
        const double change = change_risk(plan);
        if (change > options_.ledger.cap || !ledger_.covers(cost + batch + change)) {
            round.decision.reason = Reason::over_budget;
        } else {
            return start(plan, Reason::pays, round.limits.n_leaves > 1 ? options_.k : 1);
        }
    }
    if (gain <= 0.0) return;
    start(plan, Reason::pays, 0);
    round.frontier.clear();
}

void Planner::start(SequencePlan & plan, Reason reason, int k) {
    BatchPart & round = plan.round;
    round.decision.mode = Mode::draft;
    round.decision.reason = reason;
    round.decision.k = k;
    round.frontier.assign(1, 0);
    round.pool.begin(round.tree.token[0]);
    round.cursor = 0;
    round.n_draft_rows = 0;
    drafting_.push_back(&plan);
    if (plan.strategy().is_fixed() && !round.has_drafter()) round.frontier.clear();
    if (plan.is_auto() || !round.has_drafter()) round.pool.add_text(round.text_draft, round.text_a);
    round.decision.n_text = round.pool.n_text();
    round.decision.n_forced = std::min(round.text_draft.n_forced, round.pool.n_text());
}

// Opens the cost model for a batch. plan: the only known conversation; null = all conversations are known.
void Planner::open_cost_model(int n_rows, const SequencePlan * plan) {
    const int n_max = std::clamp(costs_.n_rows_max() - n_rows, 1, n_nodes_max);
    const double first_use = std::max(0.0, first_use_ - ledger_.first_uses());
    cost_model_.open(costs_, n_rows, n_max, target_only_ms_, n_roots_, n_times_, first_use);
    if (is_exact_) cost_model_.keep_exact(exact_rows_, costs_);
    if (plan && keeps_size(*plan)) cost_model_.fix_rows(plan->size.n_rows);
}

void Planner::catch_up(SequencePlan & plan, int n_rows, double ms) {
    plan.round.draft_ms_expected += costs_.commit(n_rows);
    round_draft_ms_ += clean(ms);
}

// --- drafts from the text -------------------------------------------------------------------------------------------

// Shortens the draft copied from the text to the part that can be emitted and that the strategy allows. The draft ends
// at an end token.
void Planner::trim_text(SequencePlan & plan) {
    Tokens & tokens = plan.round.text_draft.tokens;
    const int n_max = std::min(plan.round.n_left - 1, plan.is_auto() ? INT_MAX : plan.strategy().depth);
    int n = 0;
    while (n < std::min(n_max, (int)tokens.size()) && tokens[n] >= 0) {
        if (ends(tokens[n++])) break;
    }
    tokens.resize(n);
    predict_text(plan.text.kind, plan.text.chain, plan.round.text_draft, plan.round.text_a);
}

// Returns the expected gain of verifying only the copy from the text, minus the cost; 0 if the cost is higher.
double Planner::text_gain(const SequencePlan & plan) {
    const TextDraft & draft = plan.round.text_draft;
    if (draft.empty() || !costs_.knows_target_only()) return 0.0;
    candidate_gains_.clear();
    float p = 1.0f;
    for (int i = 0; i < std::min(draft.size(), plan.round.limits.n_nodes); ++i) {
        p *= plan.round.text_a[i];
        candidate_gains_.push_back(expected_gain(plan, p));
    }
    // Between target-only rounds, the batch size changes there and back.
    const double change_ms = n_rows_last_ == n_roots_ && is_change_dear() ? 2.0 * costs_.change_ms() : 0.0;
    return std::max(0.0, cost_model_.best(candidate_gains_, budget()).gain - loss(costs_.host() + change_ms));
}

// --- grow -----------------------------------------------------------------------------------------------------------

// Adds the proposals to the pools and decides whether another draft step gains more than it costs. Each conversation
// pays for its own rows.
void Planner::grow(const std::vector<SequencePlan *> & plans, double ms) {
    if (plans.empty()) return;
    const bool is_first = plans[0]->round.decision.steps.empty();
    const auto n_rows_of = [&](const BatchPart & round) {
        return is_first ? round.n_commit_rows() : (int)round.frontier.size();
    };
    int n_all = 0;
    for (const SequencePlan * plan : plans) n_all += n_rows_of(plan->round);
    const double expected_ms = is_first ? costs_.commit(n_all) : costs_.step(n_all);
    is_first ? costs_.learn_commit(n_all, ms) : costs_.learn_step(n_all, ms);
    round_draft_ms_ += clean(ms);
    for (SequencePlan * plan : plans) {
        const int n_rows = n_rows_of(plan->round);
        plan->round.draft_ms_expected += (double)n_rows / std::max(n_all, 1) * expected_ms;
        if (!is_first) plan->round.n_draft_rows += n_rows;
        add_step(*plan);
    }
    set_frontiers(plans);
}

void Planner::add_step(SequencePlan & plan) {
    BatchPart & round = plan.round;
    round.pool.begin_step();
    round.decision.steps.push_back(round.frontier);
    double a[AcceptanceModel::n_ranks_max];
    for (size_t i = 0; i < round.frontier.size(); ++i) {
        const int32_t parent = round.frontier[i];
        const DraftPool::Proposals drafted = round.pool.add_children(parent, round.children[i], round.decision.k);
        const int depth = round.pool.tree().depth[parent] + 1, n = std::min(drafted.n, AcceptanceModel::n_ranks_max);
        acceptance_.predict(plan.text.kind, plan.text.drafter, {depth, round.pool.n_deviations(parent)},
                            drafted.candidates, n, a);
        plan.text.chances.learn(depth, a, n, round.pool.p()[parent]);
        round.pool.set_chances(parent, a, n);
    }
    round.frontier.clear();
}

void Planner::add_forced(SequencePlan & plan, int32_t node, const ForcedRun & run) {
    BatchPart & round = plan.round;
    const int n_max = round.n_left - 1 - round.pool.tree().depth[node];
    for (int i = 0; i < std::min(run.size(), n_max); ++i) {
        node = round.pool.add_forced(node, run.tokens[i], forced_chance(plan.text.chain, run.is_certain[i]));
    }
}

// Chooses the frontiers of the next draft step, which is one call of the drafter for all these conversations.
void Planner::set_frontiers(const std::vector<SequencePlan *> & plans) {
    candidates_.clear();
    for (SequencePlan * plan : plans) {
        if ((int)plan->round.decision.steps.size() >= plan->round.depth_max) continue;
        if (!plan->is_auto()) {
            next_frontier_fixed(*plan);
            continue;
        }
        const int width = plan->round.limits.n_leaves > 1 ? options_.width : 1;
        find_candidates(*plan, std::min(width, plan->round.n_rows_left()));
    }
    if (candidates_.empty()) return;
    std::stable_sort(candidates_.begin(), candidates_.end(), NodeCandidate::is_better);
    collect_gains();
    double best = cost_model_.best(candidate_gains_, budget()).gain;
    int best_n = 0;
    for (int width = 1, n = 0; n < (int)candidates_.size(); width *= 2) {
        n = std::min(width, (int)candidates_.size());
        const double gain = foresee(n);
        if (gain > best) best = gain, best_n = n;
    }
    for (int i = 0; i < best_n; ++i) candidates_[i].plan->round.frontier.push_back(candidates_[i].node);
}

// Appends the n_max best nodes of the last step that may have children to candidates_.
void Planner::find_candidates(SequencePlan & plan, int n_max) {
    const DraftPool & pool = plan.round.pool;
    nodes_.clear();
    for (int32_t i : pool.step()) {
        if (!ends(pool.tree().token[i])) nodes_.push_back(i);
    }
    const auto is_better = [&](int32_t a, int32_t b) {
        return pool.p()[a] != pool.p()[b] ? pool.p()[a] > pool.p()[b] : a < b;
    };
    std::sort(nodes_.begin(), nodes_.end(), is_better);
    nodes_.resize(std::clamp(n_max, 0, (int)nodes_.size()));
    for (int32_t i : nodes_) candidates_.push_back({expected_gain(plan, pool.p()[i]), &plan, i});
}

// Fills candidate_gains_ with the expected gains of all nodes proposed in this round, in falling order.
void Planner::collect_gains() {
    candidate_gains_.clear();
    for (const SequencePlan * plan : drafting_) {
        if (!plan->is_auto()) continue;
        plan->round.pool.best_p(std::min(plan->round.limits.n_nodes, cost_model_.n_max()), gains_);
        for (float p : gains_) candidate_gains_.push_back(expected_gain(*plan, p));
    }
    std::sort(candidate_gains_.begin(), candidate_gains_.end(), std::greater<float>());
}

// Returns the expected gain of one more draft step, minus its cost. The step adds children of average probability to
// the first n candidates.
double Planner::foresee(int n) {
    merged_ = candidate_gains_;
    for (int i = 0; i < n; ++i) {
        const BatchPart & round = candidates_[i].plan->round;
        const auto & means = candidates_[i].plan->text.chances.of((int)round.decision.steps.size() + 1);
        for (int r = 0; r < round.decision.k; ++r) merged_.push_back(candidates_[i].gain * means[r]);
    }
    std::sort(merged_.begin(), merged_.end(), std::greater<float>());
    const double ms = costs_.step(n);
    return cost_model_.best(merged_, budget(ms)).gain - loss(ms);
}

// --- choose ---------------------------------------------------------------------------------------------------------

void Planner::choose(const std::vector<SequencePlan *> & plans) {
    plans_ = plans;
    n_rows_ = n_roots_ + n_replay_;
    for (SequencePlan * plan : plans_) plan->round.frontier.clear();
    choose_fixed();
    choose_auto();
    n_rows_ = n_roots_ + n_replay_;
    for (SequencePlan * plan : plans_) n_rows_ += plan->tree().n_draft();
    if (plans_.size() == 1 && options_.pads_rows) pad(*plans_[0]);
    verify_ms_expected_ = costs_.verify(n_rows_) + extra_ms(n_rows_ == n_rows_last_ ? 2 : 1, n_rows_);
    const double ms = verify_ms_expected_ + round_draft_ms_ + costs_.target_only_host() + costs_.host();
    for (SequencePlan * plan : plans_) {
        Decision & d = plan->round.decision;
        if (plan->round.is_verifying()) d.cost = costs_.is_known(n_roots_) ? rounds(ms) : 0.0;
        if (!plan->is_auto_drafting() || plan->round.is_text_only()) continue;
        double & mean = plan->text.best_speed;
        mean += (mean > 0.0 ? best_speed_rate : 1.0) * (d.n_tokens / rounds(ms) - mean);
        d.best_speed = mean;
    }
}

// Ranks the nodes of all conversations in one list, and verifies the first n nodes. n is chosen for the highest total
// gain.
void Planner::choose_auto() {
    open_cost_model(n_rows_, plans_.size() == 1 ? plans_[0] : nullptr);
    candidates_.clear();
    for (SequencePlan * plan : plans_) {
        if (!plan->is_auto_drafting()) continue;
        BatchPart & round = plan->round;
        const int n_max = std::min(round.limits.n_nodes, cost_model_.n_max());
        round.order.build(plan->pool(), round.pool.p(), n_max, round.limits.n_leaves);
        for (float p : round.order.p()) candidates_.push_back({expected_gain(*plan, p), plan, 0});
    }
    std::stable_sort(candidates_.begin(), candidates_.end(), NodeCandidate::is_better);
    candidate_gains_.clear();
    for (const NodeCandidate & candidate : candidates_) candidate_gains_.push_back(candidate.gain);
    // Only verified drafts show costs. Without a try, costs that are too high would end drafting for good. So after
    // many unverified drafts, the first node gets a gain that pays for the cheapest allowed batch.
    if (n_unverified_ >= n_unverified_max && !candidates_.empty()) candidate_gains_[0] += 1e3f;
    const CostModel::Selection selected = cost_model_.best(candidate_gains_, budget());
    if (n_unverified_ < n_unverified_max && !candidates_.empty() && !options_.pads_rows)
        n_unverified_ = std::max(0, n_unverified_ + (selected.n > 0 ? -2 : 1));
    for (SequencePlan * plan : plans_) {
        if (!plan->is_auto_drafting()) continue;
        const int n = (int)std::count_if(candidates_.begin(), candidates_.begin() + selected.n,
                                         [&](const NodeCandidate & candidate) { return candidate.plan == plan; });
        take(*plan, plan->round.order.nodes(), n);
    }
}

namespace {
// Appends nodes depth first, best children first. So the likeliest path comes first and is contiguous.
void append_depth_first(const DraftTree & pool, const std::vector<int32_t> & nodes, int32_t parent,
                        std::vector<int32_t> & out) {
    for (int32_t node : nodes) {
        if (pool.parent[node] != parent) continue;
        out.push_back(node);
        append_depth_first(pool, nodes, node, out);
    }
}
}  // namespace

// Makes a tree of the first n of `nodes` and sets it as the plan's tree.
void Planner::take(SequencePlan & plan, const std::vector<int32_t> & nodes, int n) {
    BatchPart & round = plan.round;
    Decision & d = round.decision;
    nodes_.assign(nodes.begin(), nodes.begin() + n);
    std::sort(nodes_.begin(), nodes_.end());
    d.nodes.clear();
    append_depth_first(plan.pool(), nodes_, 0, d.nodes);
    if (n == 0) {
        d.mode = Mode::probe;
        d.reason = Reason::all_rejected;
        return;
    }
    round.tree = round.pool.tree().take(d.nodes);
    d.n_leaves = (int)round.tree.leaves().size();
    d.depth = *std::max_element(round.tree.depth.begin(), round.tree.depth.end());
    for (int32_t node : d.nodes) d.n_tokens += round.pool.p()[node];
}

// --- expected results of average drafts ------------------------------------------------------------------------------

namespace {
// With Exactness::automatic, the minimum speed of exact batches as a share of the best speed over all batch sizes.
constexpr double cheap = 0.95;
constexpr int n_depths_foreseen = 8;

// Returns the probabilities of the nodes of an average pool with `depth` steps, in falling order.
std::vector<float> foreseen_pool(const MeanChances & chances, int depth, int k, int width) {
    std::vector<float> front{1.0f}, next, p;
    for (int d = 1; d <= depth; ++d) {
        next.clear();
        for (float above : front) {
            for (int r = 0; r < std::min(k, MeanChances::n_ranks); ++r) next.push_back(above * chances.of(d)[r]);
        }
        std::sort(next.begin(), next.end(), std::greater<float>());
        p.insert(p.end(), next.begin(), next.end());
        next.resize(std::min(next.size(), (size_t)width));
        front = next;
    }
    std::sort(p.begin(), p.end(), std::greater<float>());
    return p;
}
}  // namespace

// Returns the expected tokens per target-only round of the best draft of n nodes with average probabilities, for each
// n. Call this function only once prices are known.
std::vector<double> Planner::foreseen_speeds(const SequencePlan & plan) const {
    const int n_max = std::min(plan.round.limits.n_nodes, std::max(1, costs_.n_rows_max() - n_roots_));
    const bool is_tree = plan.round.limits.n_leaves > 1;
    const int k = is_tree ? options_.k : 1, width = is_tree ? options_.width : 1;
    std::vector<double> best(n_max + 1, 0.0);
    best[0] = 1.0;
    const int n_depths = std::min({n_depths_foreseen, options_.depth, plan.round.limits.depth_max});
    for (int depth = 1; depth <= n_depths; ++depth) {
        const std::vector<float> p = foreseen_pool(plan.text.chances, depth, k, width);
        const double draft_ms =
            costs_.commit(2 + plan.round.limits.n_block_rows) + (depth - 1) * costs_.step(k) + costs_.host();
        double tokens = 1.0;
        for (int n = 1; n <= std::min(n_max, (int)p.size()); ++n) {
            tokens += p[n - 1];
            const int n_rows = n_roots_ + n;
            const double ms = costs_.verify(n_rows) + costs_.target_only_host() + draft_ms;
            best[n] = std::max(best[n], tokens / rounds(ms));
        }
    }
    return best;
}

// Decides whether exact batches are cheap, for Exactness::automatic. A fixed strategy is limited only if the request
// demands exactness. For the automatic strategy, the planner decides once, as soon as prices are known, so that an
// engine computes all answers alike. Prices are known once an engine is open. Until then, exactness does not count as
// cheap. While sizes are unmeasured, all strategies use only exact batches, so that an answer does not depend on how
// far the measurement has come. Devices draft chains unless trees gain clearly more.
bool Planner::is_exact_cheap(const SequencePlan & plan) {
    if (!exact_rows_.is_complete || exact_rows_.allows_all(n_roots_ + plan.round.limits.n_nodes)) return true;
    if (!plan.is_auto() || !costs_.knows_target_only()) return false;
    if (is_exact_cheap_) return *is_exact_cheap_;
    const std::vector<double> speeds = foreseen_speeds(plan);
    double exact = 1.0, any = 1.0;
    for (int n = 1; n < (int)speeds.size(); ++n) {
        any = std::max(any, speeds[n]);
        if (exact_rows_.allows(n_roots_ + n)) exact = std::max(exact, speeds[n]);
    }
    is_exact_cheap_ = exact >= cheap * any;
    return *is_exact_cheap_;
}

// --- batch size -----------------------------------------------------------------------------------------------------

// A device reuses a graph while the number of rows stays the same. Trees need a graph each, because llama.cpp also
// compares the rows' sequences. So a generation uses chains of one size from this list. The size is chosen at the start
// of the generation and rarely changes.
static constexpr int sizes[] = {1, 2, 3, 4, 5, 6, 8, 12, 16};
static constexpr int n_rounds_kept = 32, n_rounds_paid = 64;  // n_rounds_paid: rounds whose gain must pay for a change

void Planner::choose_size(SequencePlan & plan) {
    PlanLimits & limits = plan.round.limits;
    limits.n_leaves = limits.n_leaves_exact = 1;
    BatchSize & size = plan.size;
    if (!costs_.knows_target_only() || size.n_rounds-- > 0) return;
    size = {1, n_rounds_kept};
    const double once = n_rows_last_ > 0 ? rounds(costs_.change_ms()) / n_rounds_paid : 0.0;
    const std::vector<double> speeds = foreseen_speeds(plan);
    double best = 0.0;
    for (int n : sizes) {
        if (n > (int)speeds.size() || (plan.exact.is_exact && !exact_rows_.allows(n))) continue;
        const double speed = 1.0 / (1.0 / speeds[n - 1] + (n == n_rows_last_ ? 0.0 : once));
        if (speed > best) best = speed, size.n_rows = n;
    }
}

// Returns the possible loss from changes of batch size if a draft gains nothing, for a device: the change to the
// draft's size and the change back to one row. Until drafts have measurably gained, half of the ledger is reserved for
// the change back. After a prompt, the first change is free.
double Planner::change_risk(const SequencePlan & plan) const {
    if (!options_.pads_rows || !is_change_dear()) return 0.0;
    const double cap = options_.ledger.cap, change = rounds(costs_.change_ms());
    const double there = n_rows_last_ == n_roots_ ? change : 0.0;
    // A new conversation starts above this speed.
    if (there == 0.0 && plan.text.recent.speed() >= 1.2) return 0.0;
    return there + std::min(change, cap / 2.0);
}

// Pads batches with drafts.
void Planner::pad(SequencePlan & plan) {
    if (!plan.round.is_verifying()) return;
    int n_rows = keeps_size(plan) ? plan.size.n_rows : n_rows_;
    if (plan.strategy().kind == Strategy::Kind::chain) {
        n_rows = std::min({1 + plan.strategy().nodes, 1 + plan.round.limits.n_nodes, sizes[std::size(sizes) - 1]});
    }
    if (plan.exact.is_exact && !exact_rows_.allows(n_rows)) return;
    n_padding_ = std::max(0, n_rows - n_rows_);
    n_rows_ += n_padding_;
}

// --- learn ----------------------------------------------------------------------------------------------------------

// Learns from every node that the target reached: the node's next token is known, so all of its proposed children get a
// label. This includes unverified children and the children of the last accepted node. If the draft was not verified,
// the search for reached nodes continues through the following target-only rounds. Unreached nodes get no labels.
void Planner::learn(SequencePlan & plan, const Tokens & tokens) {
    plan.round.n_committed = (int)tokens.size();
    learn_text(plan.text.kind, plan.text.chain, plan.round.text_draft, tokens);
    const DraftPool & pool = plan.round.pool;
    int & cursor = plan.round.cursor;
    for (Token token : tokens) {
        const int node = cursor;
        if (node < 0) return;
        cursor = -1;
        const DraftPool::Proposals drafted = pool.proposals(node);
        if (drafted.n == 0) return;
        int matched = -1;
        for (int i = 0; i < drafted.n && matched < 0; ++i) {
            if (drafted.candidates[i].token == token) matched = i;
        }
        const int n_known = std::min(drafted.n, AcceptanceModel::n_ranks_max);
        acceptance_.learn(plan.text.kind, plan.text.drafter, {pool.tree().depth[node] + 1, pool.n_deviations(node)},
                          drafted.candidates, n_known, matched);
        if (matched >= 0) cursor = drafted.nodes[matched];
    }
}

void Planner::end_round(double verify_ms, double round_ms) {
    const bool is_drafted = n_rows_ > n_roots_;
    bool is_target_only = n_replay_ == 0;
    for (const SequencePlan * plan : plans_) is_target_only = is_target_only && !plan->round.is_drafting();
    if (n_rows_ != n_rows_last_) n_alike_ = 0, is_size_free_ = n_rows_last_ == 0;
    ++n_alike_;
    n_rows_last_ = n_rows_;
    settle(clean(verify_ms), clean(round_ms), round_draft_ms_);
    // A try that took less time than expected is repeated until the costs are right.
    if (n_unverified_ == n_unverified_max && is_drafted && verify_ms > 0.8 * verify_ms_expected_) n_unverified_ = 0;
    learn_decode(n_alike_, n_rows_, verify_ms);
    costs_.learn_host(!is_target_only, round_ms - verify_ms - round_draft_ms_);
    // If the batch has a conversation with a fixed strategy, no target-only round happens. So the other conversations
    // do not wait for such a round.
    if (is_drafted && !is_calibrating_) {
        n_since_target_only_ = std::min(n_since_target_only_ + 1, n_refresh);
    } else if (is_drafted || (is_target_only && !is_slow())) {
        n_target_only_ = std::min(n_target_only_ + 1, n_target_only_first);
        n_since_target_only_ = 0;
    }
    plans_.clear();
}

void Planner::end_untimed_round() {
    charged_ = 0.0;
    n_rows_last_ = n_alike_ = 0;
    plans_.clear();
}

// Updates the ledger and the recent speeds. A target-only round costs exactly 1, whatever its measured time. In a round
// that verified no draft, the target-only part costs exactly 1. If the round's price is known, time beyond the stall
// limit is not charged. While the ledger saves for drafting, commits of pending rows to the drafter are not charged.
// Otherwise, with a drafter that is large relative to the target, these commits would use up the whole balance, and
// drafting would never start again.
void Planner::settle(double verify_ms, double round_ms, double draft_ms) {
    double expected_ms = costs_.host(), n_tokens = 0.0;
    const bool is_verifying = n_rows_ > n_roots_;
    bool is_auto = true, is_over_budget = true;
    for (const SequencePlan * plan : plans_) {
        expected_ms += plan->round.draft_ms_expected;
        n_tokens += (double)plan->round.n_committed / n_roots_;
        is_auto = is_auto && plan->is_auto();
        is_over_budget = is_over_budget && plan->round.decision.reason == Reason::over_budget;
    }
    charged_ = 0.0;
    if (!costs_.is_known(n_roots_)) return;
    double cost = 1.0, first_use = 0.0, change = 0.0;
    // Adds the cost of a change of batch size, unless a target-only round would have changed the size as well.
    if (is_slow() && costs_.is_known(n_rows_)) {
        const double over_ms = std::max(0.0, verify_ms - costs_.verify(n_rows_));
        if (!is_size_free_) change = rounds(std::min(over_ms, costs_.change_ms()));
        round_ms -= over_ms;
        verify_ms -= over_ms;
    }
    if (is_verifying) {
        const double cost_max = rounds(stall * (verify_ms_expected_ + costs_.target_only_host() + expected_ms));
        cost = rounds(std::max(round_ms, verify_ms + draft_ms));
        const bool is_first = !costs_.is_tried(n_rows_) || !costs_.is_known(n_rows_);
        if (is_first) first_use = std::clamp(cost - cost_max, 0.0, first_use_max);
        // An excess of first_use_max is a stall, which does not predict the cost of other batch sizes. If all of a
        // stall were charged, drafting would end for thousands of tokens.
        if (is_first && first_use < first_use_max)
            first_use_ += (first_use_ > 0.0 ? first_use_rate : 1.0) * (first_use - first_use_);
        cost = std::min(cost, cost_max + first_use);
    } else if (draft_ms > 0.0) {
        const double extra_ms = std::max(round_ms - verify_ms - costs_.target_only_host(), draft_ms);
        cost += rounds(std::min(extra_ms, stall * expected_ms));
    }
    cost += change;
    charged_ = cost;
    for (SequencePlan * plan : plans_) plan->text.recent.add(plan->round.n_committed, cost - first_use);
    if (is_auto) ledger_.settle(n_tokens, is_over_budget && !is_verifying ? 1.0 + change : cost, first_use);
}

}  // namespace eaglecpp
