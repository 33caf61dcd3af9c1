// SPDX-License-Identifier: MIT
#include "simulator.h"

#include <algorithm>
#include <cmath>

#include "algo/tree.h"
#include "base/hash.h"
#include "play.h"
#include "tree_grower.h"

namespace eaglecpp::sim {

uint64_t hash(uint64_t a, uint64_t b) {
    return mix(a * mix_step + b + 0xD1B54A32D192ED03ull);
}

double uniform(uint64_t h) {
    return (double)(h >> 11) * 0x1.0p-53;
}

// Returns a roughly normal number. It is the sum of four uniform numbers, so every platform gives the same number.
double normal(uint64_t h) {
    double sum = 0.0;
    for (int i = 0; i < 4; ++i) sum += uniform(h = hash(h, i));
    return (sum - 2.0) * 1.7320508;
}

static double sigmoid(double z) {
    return 1.0 / (1.0 + std::exp(-z));
}

double Machine::verify_ms(int n_rows) const {
    size_t i = 1;
    while (i + 1 < curve.size() && curve[i].first < n_rows) ++i;
    const auto [x0, y0] = curve[i - 1];
    const auto [x1, y1] = curve[i];
    return y0 + (y1 - y0) * (n_rows - x0) / (x1 - x0);
}

const std::vector<Fixed> & fixed_strategies() {
    static const std::vector<Fixed> all = {
        {"plain", 0, 0, 0},        {"chain 1", 1, 1, 1},      {"chain 2", 1, 2, 2},      {"chain 3", 1, 3, 3},
        {"chain 4", 1, 4, 4},      {"chain 5", 1, 5, 5},      {"chain 6", 1, 6, 6},      {"chain 7", 1, 7, 7},
        {"chain 8", 1, 8, 8},      {"chain 10", 1, 10, 10},   {"chain 15", 1, 15, 15},   {"tree 2.3.5", 2, 3, 5},
        {"tree 3.3.7", 3, 3, 7},   {"tree 4.4.7", 4, 4, 7},   {"tree 4.5.15", 4, 5, 15}, {"tree 4.7.15", 4, 7, 15},
        {"tree 4.6.31", 4, 6, 31}, {"tree 8.6.31", 8, 6, 31}, {"tree 8.8.63", 8, 8, 63},
    };
    return all;
}

// --- texts -----------------------------------------------------------------------------------------------------------

World::World(const Text & text, int n_tokens, uint64_t seed) : text_(text), n_tokens_(n_tokens), seed_(seed) {
    for (int pos = 0; pos < n_tokens + 32; ++pos) {
        const Style s = text.style(pos);
        const bool is_new = styles_.empty() || s.mu != styles_.back().mu || s.sd != styles_.back().sd ||
                            s.shift != styles_.back().shift;
        if (is_new) styles_.push_back(s);
        const uint64_t h = hash(seed, pos);
        positions_.push_back({(float)normal(hash(h, 1)), (float)normal(hash(h, 2)), (float)uniform(hash(h, 3)),
                              (int)styles_.size() - 1});
    }
}

int World::n_left(int pos) const {
    const int end = text_.request > 0 ? (pos / text_.request + 1) * text_.request : n_tokens_;
    return std::min(end, n_tokens_) - pos;
}

// Returns the rank (from 0) of the candidate that is the target's token, or -1. A later candidate is the target's token
// with 0.45 of the remaining probability. The total probability is limited by the drafter's coverage of the target's
// tokens.
int World::matched_rank(const Position & here, const Style & s, double x, int depth) const {
    const double logit =
        s.logits.empty() ? s.shift - s.fall * (depth - 1) : s.logits[std::min<size_t>(depth, s.logits.size()) - 1];
    double reached = sigmoid(s.slope * x + logit);
    double left = (1.0 - reached) * 0.8 * sigmoid(1.5 + s.shift);
    for (int rank = 0; rank < 16; ++rank) {
        if (here.luck < reached) return rank;
        reached += 0.45 * left;
        left *= 0.55;
    }
    return -1;
}

std::vector<Candidate> World::propose(int pos, int depth, int k, uint64_t key) const {
    const Position & here = positions_[std::min<size_t>(pos, positions_.size() - 1)];
    const Style & s = styles_[here.style];
    const bool is_on_path = key == 0;
    const double x = s.mu + s.sd * (is_on_path ? here.x : normal(hash(seed_, key)));
    const double noise = s.noise > 0.0 ? s.noise * (is_on_path ? here.noise : normal(hash(key, 5))) : 0.0;
    const int matched = is_on_path ? matched_rank(here, s, x, depth) : -1;
    double q = sigmoid(x + noise), next = (1.0 - q) * 0.45;
    std::vector<Candidate> out;
    out.reserve(k);
    for (int rank = 0; rank < k; ++rank) {
        out.push_back({rank == matched ? true_token : (Token)(2 + rank), (float)std::log(q)});
        q = next;
        next *= 0.55;
    }
    return out;
}

std::vector<std::vector<Candidate>> RoundDrafter::propose(const DraftTree & pool, const std::vector<int32_t> & frontier,
                                                          int k) const {
    std::vector<std::vector<Candidate>> out;
    for (int32_t node : frontier) {
        uint64_t key = 0;
        for (int32_t i = node; i > 0 && key == 0; i = pool.parent[i]) {
            if (pool.token[i] != World::true_token) key = hash(hash(pos_, node), pool.token[node]) | 1;
        }
        const int depth = pool.depth[node] + 1;
        out.push_back(world_.propose(pos_ + depth - 1, depth, k, key));
        if (world_.text().is_adversary && key == 0) out.back()[0].token = World::true_token;
    }
    return out;
}

Tokens RoundDrafter::emit(const DraftTree & tree) const {
    if (world_.text().is_adversary && tree.n_draft() > 0) return {World::other_token};
    int n_left = world_.n_left(pos_);
    return match(tree, [&](int) { return Choice{World::true_token, --n_left == 0}; }).tokens;
}

std::vector<int> World::run_fixed(const Fixed & f) const {
    std::vector<int> out;
    for (int pos = 0; pos < n_tokens_; pos += out.back()) {
        const RoundDrafter drafter(*this, pos);
        test::TreeGrower grower(0, std::max(f.k, 1));
        for (int level = 0; level < std::min(f.depth, n_left(pos) - 1); ++level) {
            grower.grow(drafter.propose(grower.pool(), grower.frontier(), f.k));
        }
        out.push_back((int)drafter.emit(test::best_subtree(grower.pool(), f.nodes, grower.pool().size())).size());
    }
    return out;
}

// --- runs ------------------------------------------------------------------------------------------------------------

double NoisyClock::operator()(double ms) {
    const uint64_t h = hash(seed_, n_++);
    ms *= std::exp(d_.noise * normal(h));
    return uniform(hash(h, 7)) < d_.stall_share ? ms * d_.stall_factor : ms;
}

double worst_window(const std::vector<Mark> & marks, const std::vector<double> & plain_ms, int n) {
    double worst = 1e9;
    size_t to = 0;
    Mark from{0, 0.0};
    for (size_t i = 0; i < marks.size(); from = marks[i++]) {
        while (to < marks.size() && marks[to].n_tokens - from.n_tokens < n) ++to;
        if (to == marks.size()) break;
        const int end = std::min<int>(marks[to].n_tokens, (int)plain_ms.size() - 1);
        worst = std::min(worst, (plain_ms[end] - plain_ms[from.n_tokens]) / (marks[to].ms - from.ms));
    }
    return worst;
}

double Scene::verify_ms(int pos, int n_rows) const {
    const double share = disturbance_.kv_per_1k_row * n_rows;
    double ms = machine_.verify_ms(n_rows) + machine_.plain_ms() * share * world_->n_kv(pos) / 1000.0;
    if (disturbance_.reshape) ms *= disturbance_.reshape(pos, n_rows);
    return ms * drift(pos);
}

std::vector<double> Scene::plain_ms() const {
    std::vector<double> out{0.0};
    for (int pos = 0; pos < world_->n_tokens(); ++pos) {
        out.push_back(out.back() + verify_ms(pos, 1) + (pos == 0 ? disturbance_.first_use_ms : 0.0) + begin_ms(pos));
    }
    return out;
}

double Scene::begin_ms(int pos) const {
    const double more = disturbance_.rebuild + disturbance_.capture;
    return begins_at(pos) ? drift(pos) * machine_.plain_ms() * more : 0.0;
}

bool Scene::begins_at(int pos) const {
    const int request = world_->text().request;
    return pos == 0 || (request > 0 && pos % request == 0);
}

double Scene::run_fixed(const Fixed & f, const std::vector<int> & rounds) const {
    double ms = disturbance_.first_use_ms;
    int pos = 0, n_pending = 1;
    for (int n : rounds) {
        const int depth = std::min(f.depth, world_->n_left(pos) - 1);
        ms += verify_ms(pos, 1 + (depth > 0 ? f.nodes : 0)) + begin_ms(pos);
        if (depth > 0) {
            ms += drift(pos) * (machine_.commit_ms(n_pending) + (depth - 1) * machine_.level_ms(f.k)) + host_ms(pos);
        }
        n_pending = n;
        pos += n;
    }
    return ms;
}

// One run of the planner through a scene.
class Run {
  public:
    Run(const Scene & scene, const RunOptions & options)
        : s_(scene), planner_(options.planner), clock_(scene.disturbance_, 99) {
        if (!options.costs.empty()) planner_.costs().set_state(options.costs);
    }

    Result operator()() {
        while (pos_ < s_.world_->n_tokens()) round();
        return std::move(out_);
    }

  private:
    void round() {
        if (s_.begins_at(pos_)) {
            last_rows_ = 0;  // a prompt changed the batch size
            planner_.begin_request(plan_, RequestKind::greedy, false);
        }
        const Decision & d = plan_.decision();
        const RoundDrafter drafter(*s_.world_, pos_);
        const auto propose = [&](const test::Turn &) {
            return drafter.propose(plan_.pool(), plan_.frontier(), plan_.decision().k);
        };
        double draft_ms = 0.0;  // drafting time without noise
        const auto ms_of = [&](bool is_first, int n_rows) {
            const double ms = is_first ? s_.machine_.commit_ms(n_rows) : s_.machine_.level_ms(n_rows);
            draft_ms += s_.drift(pos_) * ms;
            return clock_(s_.drift(pos_) * ms);
        };
        const test::Turn turn{&plan_, {0, s_.world_->n_left(pos_), n_pending_, s_.machine_.limits()}};
        const double seen_ms = test::draft(planner_, {turn}, propose, ms_of);
        const Tokens tokens = drafter.emit(plan_.tree());
        const double verify_ms = verify();
        const double host_ms = d.mode == Decision::Mode::target_only ? 0.0 : s_.host_ms(pos_);
        const double seen_verify_ms = clock_(verify_ms);
        planner_.learn(plan_, tokens);
        planner_.end_round(seen_verify_ms, seen_ms + seen_verify_ms + host_ms);
        if (d.reason == Decision::Reason::all_rejected) out_.rejected_ms += draft_ms + host_ms;
        n_pending_ = (d.mode == Decision::Mode::target_only ? n_pending_ : 0) + (int)tokens.size();
        count(draft_ms + verify_ms + host_ms, (int)tokens.size());
    }

    int n_rows_of_batch() const { return plan_.tree().size() + planner_.n_padding(); }

    double verify() {
        const int n_rows = n_rows_of_batch();
        double ms = s_.verify_ms(pos_, n_rows);
        const bool is_rebuilt = n_rows != last_rows_ || (s_.machine_.is_device && !plan_.decision().is_chain());
        out_.n_rebuilt += is_rebuilt;
        const double more = is_rebuilt ? s_.disturbance_.rebuild : was_rebuilt_ ? s_.disturbance_.capture : 0.0;
        ms += s_.drift(pos_) * s_.machine_.plain_ms() * more;
        was_rebuilt_ = is_rebuilt;
        if (!is_used_[n_rows]) ms += s_.disturbance_.first_use_ms;
        is_used_[n_rows] = true;
        last_rows_ = n_rows;
        return ms;
    }

    void count(double ms, int n_tokens) {
        pos_ += n_tokens;
        out_.ms += ms;
        ++out_.rows[n_rows_of_batch()];
        out_.marks.push_back({pos_, out_.ms});
    }

    const Scene & s_;
    Planner planner_;
    SequencePlan plan_;
    NoisyClock clock_;
    Result out_;
    std::map<int, bool> is_used_;
    int pos_ = 0, n_pending_ = 1, last_rows_ = 1;
    bool was_rebuilt_ = false;
};

Result Scene::run_planner(const RunOptions & options) const {
    return Run(*this, options)();
}

}  // namespace eaglecpp::sim
