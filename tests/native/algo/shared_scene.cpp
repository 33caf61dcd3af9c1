// SPDX-License-Identifier: MIT
#include "shared_scene.h"

#include <algorithm>

namespace eaglecpp::sim {

namespace {
struct Place {
    std::unique_ptr<World> world;
    SequencePlan plan;
    int pos = 0, n_pending = 1;
    bool is_in = false;
    double plain_tokens = 0.0;  // that plain batching would have given this conversation
};

class SharedRun {
  public:
    SharedRun(const SharedScene & scene, const PlannerOptions & options, const Strategy * strategy)
        : s_(scene), planner_(options), clock_(scene.disturbance, scene.seed), places_(scene.texts.size()) {
        for (size_t i = 0; i < places_.size(); ++i) {
            places_[i].world = std::make_unique<World>(scene.texts[i], 8 * scene.n_rounds, hash(scene.seed, i));
            if (strategy) places_[i].plan.use(*strategy);
        }
    }

    SharedResult operator()() {
        for (int round = 0; round < s_.n_rounds; ++round) {
            if (round % s_.period == 0) seat(hash(s_.seed + 17, round / s_.period));
            run_round();
        }
        SharedResult out;
        out.speed = n_tokens_.back() / n_plain_.back();
        for (size_t to = 512; to < n_tokens_.size(); ++to) {
            const double window = (n_tokens_[to] - n_tokens_[to - 512]) / (n_plain_[to] - n_plain_[to - 512]);
            out.window = std::min(out.window, window);
        }
        for (const Place & p : places_) {
            if (p.plain_tokens > 0.0) out.slowest = std::min(out.slowest, p.pos / p.plain_tokens);
        }
        return out;
    }

  private:
    // Who is there: three of four places on average, at least one.
    void seat(uint64_t key) {
        in_.clear();
        for (size_t i = 0; i < places_.size(); ++i) {
            Place & p = places_[i];
            const bool is_in = i == key % places_.size() || hash(key, i) % 4 != 0;
            if (is_in && !p.is_in) planner_.begin_request(p.plan, RequestKind::greedy, false);
            p.is_in = is_in;
            if (is_in) in_.push_back(&p);
        }
    }

    void run_round() {
        const int n = (int)in_.size();
        planner_.begin_round(n);
        double ms = 0.0, seen_ms = 0.0;
        std::vector<SequencePlan *> plans;
        for (Place * p : in_) {
            planner_.decide(p->plan, {0, p->world->n_left(p->pos), p->n_pending, s_.machine.limits()});
            plans.push_back(&p->plan);
        }
        ms += draft(seen_ms);
        planner_.choose(plans);
        int n_rows = 0;
        for (const SequencePlan * plan : plans) n_rows += plan->tree().size();
        const double verify_ms = s_.machine.verify_ms(n_rows);
        const double host_ms = ms > 0.0 ? s_.machine.host * s_.machine.plain_ms() : 0.0;
        ms += verify_ms + host_ms;
        double n_tokens = 0.0;
        for (Place * p : in_) n_tokens += commit(*p, ms / s_.machine.verify_ms(n));
        const double seen_verify_ms = clock_(verify_ms);
        planner_.end_round(seen_verify_ms, seen_ms + seen_verify_ms + host_ms);
        n_tokens_.push_back(n_tokens_.back() + n_tokens);
        n_plain_.push_back(n_plain_.back() + n * ms / s_.machine.verify_ms(n));
    }

    // all of a level together
    double draft(double & seen_ms) {
        double true_ms = 0.0;
        for (bool is_first = true;; is_first = false) {
            std::vector<Proposal> proposals;
            int n_rows = 0;
            for (Place * p : in_) {
                SequencePlan & plan = p->plan;
                if (plan.frontier().empty()) continue;
                n_rows += is_first ? p->n_pending : (int)plan.frontier().size();
                const RoundDrafter drafter(*p->world, p->pos);
                proposals.push_back({&plan, drafter.propose(plan.pool(), plan.frontier(), plan.k())});
            }
            if (proposals.empty()) return true_ms;
            const double ms = is_first ? s_.machine.commit_ms(n_rows) : s_.machine.level_ms(n_rows);
            const double seen = clock_(ms);
            true_ms += ms;
            seen_ms += seen;
            planner_.grow(proposals, seen);
        }
    }

    double commit(Place & p, double plain_tokens) {
        const Tokens tokens = RoundDrafter(*p.world, p.pos).emit(p.plan.tree());
        planner_.learn(p.plan, tokens);
        const bool is_plain = p.plan.decision().mode == Decision::Mode::plain;
        p.n_pending = (is_plain ? p.n_pending : 0) + (int)tokens.size();
        p.pos += (int)tokens.size();
        p.plain_tokens += plain_tokens;
        return (double)tokens.size();
    }

    const SharedScene & s_;
    Planner planner_;
    NoisyClock clock_;
    std::vector<Place> places_;
    std::vector<Place *> in_;
    std::vector<double> n_tokens_{0.0}, n_plain_{0.0};  // by the end of each round
};
}  // namespace

SharedResult run_shared(const SharedScene & scene, const PlannerOptions & options, const Strategy * strategy) {
    return SharedRun(scene, options, strategy)();
}

}  // namespace eaglecpp::sim
