// SPDX-License-Identifier: MIT
// Scenarios S44 to S46, in which several conversations share one batch. Every 50 rounds, some of the conversations join
// or leave. The planner is compared with target-only batching and with the best fixed chain.
#include <algorithm>
#include <cstdio>

#include "../check.h"
#include "base/error.h"
#include "play.h"
#include "scenarios.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

namespace {
constexpr int n_rounds = 1000, period = 50, n_window = 512;

struct Case {
    const char * name;
    int machine;
    std::vector<int> texts;  // number of the text for each slot
};

struct Place {
    Place(int text_number, uint64_t seed) : world(text(text_number), 8 * n_rounds, seed) {}

    World world;
    SequencePlan plan;
    int pos = 0, n_pending = 1;
    bool is_in = false;
    double plain_tokens = 0.0;  // number of tokens that target-only batching gives this conversation
};

class SharedRun {
  public:
    // strategy: null lets the planner decide
    SharedRun(const Case & c, uint64_t seed, const Strategy * strategy)
        : machine_(machine(c.machine)), seed_(seed), clock_(disturbance_, seed) {
        for (size_t i = 0; i < c.texts.size(); ++i) {
            places_.push_back(std::make_unique<Place>(c.texts[i], hash(seed, i)));
            if (strategy) places_[i]->plan.use(*strategy);
        }
        for (int round = 0; round < n_rounds; ++round) {
            if (round % period == 0) seat(hash(seed_ + 17, round / period));
            run_round();
        }
    }

    // Returns the speed relative to target-only batching of the same conversations.
    double speed() const { return n_tokens_.back() / n_target_only_.back(); }
    // Returns the minimum of speed() over all windows of n_window rounds.
    double window() const {
        double worst = 1e9;
        for (size_t to = n_window; to < n_tokens_.size(); ++to) {
            const double tokens = n_tokens_[to] - n_tokens_[to - n_window];
            worst = std::min(worst, tokens / (n_target_only_[to] - n_target_only_[to - n_window]));
        }
        return worst;
    }
    // Returns the speed of the slowest conversation over its whole text.
    double slowest() const {
        double worst = 1e9;
        for (const auto & p : places_) {
            if (p->plain_tokens > 0.0) worst = std::min(worst, p->pos / p->plain_tokens);
        }
        return worst;
    }

  private:
    // Chooses the active conversations at random, each with probability 3/4. At least one is active.
    void seat(uint64_t key) {
        in_.clear();
        for (size_t i = 0; i < places_.size(); ++i) {
            Place & p = *places_[i];
            const bool is_in = i == key % places_.size() || hash(key, i) % 4 != 0;
            if (is_in && !p.is_in) planner_.begin_request(p.plan, RequestKind::greedy, false);
            p.is_in = is_in;
            if (is_in) in_.push_back(&p);
        }
    }

    void run_round() {
        const int n = (int)in_.size();
        std::vector<test::Turn> turns;
        std::map<const SequencePlan *, const Place *> place;
        for (Place * p : in_) {
            turns.push_back({&p->plan, {0, p->world.n_left(p->pos), p->n_pending, machine_.limits()}});
            place[&p->plan] = p;
        }
        const auto propose = [&](const test::Turn & t) {
            const RoundDrafter drafter(place[t.plan]->world, place[t.plan]->pos);
            return drafter.propose(t.plan->pool(), t.plan->frontier(), t.plan->decision().k);
        };
        double ms = 0.0;  // time without noise
        const auto ms_of = [&](bool is_first, int n_rows) {
            const double one = is_first ? machine_.commit_ms(n_rows) : machine_.level_ms(n_rows);
            ms += one;
            return clock_(one);
        };
        const double seen_ms = test::draft(planner_, turns, propose, ms_of);
        int n_rows = 0;
        for (const Place * p : in_) n_rows += p->plan.tree().size();
        const double verify_ms = machine_.verify_ms(n_rows);
        const double host_ms = ms > 0.0 ? machine_.host * machine_.plain_ms() : 0.0;
        ms += verify_ms + host_ms;
        int n_tokens = 0;
        for (Place * p : in_) n_tokens += commit(*p, ms / machine_.verify_ms(n));
        const double seen_verify_ms = clock_(verify_ms);
        planner_.end_round(seen_verify_ms, seen_ms + seen_verify_ms + host_ms);
        n_tokens_.push_back(n_tokens_.back() + n_tokens);
        n_target_only_.push_back(n_target_only_.back() + n * ms / machine_.verify_ms(n));
    }

    int commit(Place & p, double plain_tokens) {
        const Tokens tokens = RoundDrafter(p.world, p.pos).emit(p.plan.tree());
        planner_.learn(p.plan, tokens);
        const bool is_plain = p.plan.decision().mode == Decision::Mode::target_only;
        p.n_pending = (is_plain ? p.n_pending : 0) + (int)tokens.size();
        p.pos += (int)tokens.size();
        p.plain_tokens += plain_tokens;
        return (int)tokens.size();
    }

    Machine machine_;
    uint64_t seed_;
    Disturbance disturbance_;
    Planner planner_;
    NoisyClock clock_;
    std::vector<std::unique_ptr<Place>> places_;
    std::vector<Place *> in_;
    std::vector<double> n_tokens_{0.0}, n_target_only_{0.0};  // totals at the end of each round
};

void run(const Case & c) {
    const auto expect = [&](double found, double least, const char * what) {
        eaglecpp::test::report(found >= least, __FILE__, __LINE__,
                               strf("%s: %s %.3f, expected %.3f", c.name, what, found, least));
    };
    // If 16 conversations try an unprofitable draft at the same time, the window may be slightly slower.
    const double least_window = c.texts.size() > 8 ? 0.955 : 0.965;
    std::vector<double> best, speed, window, slowest;
    for (int seed = 0; seed < 4; ++seed) {
        best.push_back(1.0);
        for (int depth = 1; depth <= 6; ++depth) {
            const Strategy chain = Strategy::make("chain", 1, depth, depth);
            best.back() = std::max(best.back(), SharedRun(c, seed, &chain).speed());
        }
        const SharedRun planned(c, seed, nullptr);
        speed.push_back(planned.speed());
        window.push_back(planned.window());
        slowest.push_back(planned.slowest());
        expect(speed.back(), 0.97, "total speed relative to target-only batching");
        expect(window.back(), least_window, "window speed relative to target-only batching");
    }
    const double mean = geometric_mean(speed), mean_best = geometric_mean(best);
    std::printf("%-4s %2zu on %-31s best fixed %.3f  planner    %.3f / %.3f / %.3f\n", c.name, c.texts.size(),
                machine(c.machine).name.c_str(), mean_best, mean, geometric_mean(window), geometric_mean(slowest));
    expect(mean / mean_best, 0.97, "speed relative to the best fixed chain");
}
}  // namespace

int main() {
    std::printf("speeds relative to target-only batching: all / worst window of 512 rounds / slowest conversation\n");
    run({"S44", 1, {1, 1, 2, 4}});
    run({"S45", 7, {1, 1, 1, 1, 2, 2, 4, 4}});
    run({"S46", 2, {1, 2, 4, 1, 2, 4, 3, 1, 2, 4, 1, 2, 4, 1, 3, 2}});
    return eaglecpp::test::result();
}
