// SPDX-License-Identifier: MIT
// A deterministic simulation for the planner: machines with cost curves, texts with a drafter that agrees at given
// rates, disturbances, and a virtual clock.
//
// Coupling: each output position has one uniform random number. This number decides for every strategy which of the
// drafter's candidates is the target's token. So all strategies see the same text, and a deep draft fails at every
// position at which a shallow draft fails. Noise and stalls only affect the times that the planner measures. Results
// are scored on noise-free time.
#pragma once

#include <climits>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algo/planner.h"

namespace eaglecpp::sim {

uint64_t hash(uint64_t a, uint64_t b);
double uniform(uint64_t h);  // a uniform number in [0, 1)
double normal(uint64_t h);   // a number from a distribution close to N(0, 1)

// --- machines ------------------------------------------------------------------------------------------------------

struct Machine {
    std::string name;
    // Time of a target batch, as points (rows, ms). Between the points the time is linear, and the last slope
    // continues.
    std::vector<std::pair<int, double>> curve;
    double level = 0.06;       // time of a draft step with one row, in target-only steps
    double per_width = 0.05;   // time of each further row of a draft step, in draft steps
    double per_commit = 0.05;  // time of each further committed row, in draft steps
    double host = 0.035;       // fixed host work of a drafting round, in target-only steps
    int n_leaves = 64;         // maximum number of leaves; 1 allows only chains
    bool is_device = false;    // on a device, each tree size is a separate batch size
    int n_levels = INT_MAX;    // number of slots of a block drafter
    double block = 0.0;        // time of a block drafter's pass at the start of every draft, in target-only steps

    double verify_ms(int n_rows) const;
    double plain_ms() const { return curve[0].second; }
    double level_ms(int width) const { return plain_ms() * level * (1.0 + per_width * (width - 1)); }
    double commit_ms(int n_rows) const {
        return plain_ms() * (block > 0.0 ? block : level * (1.0 + per_commit * (n_rows - 1)));
    }
    PlanLimits limits() const { return {64, n_leaves, 64, 128, 128, n_levels}; }
};

// --- fixed strategies ----------------------------------------------------------------------------------------------

struct Fixed {
    const char * name;
    int k, depth, nodes;  // 0 nodes mean target-only decoding
};
const std::vector<Fixed> & fixed_strategies();

// --- texts -----------------------------------------------------------------------------------------------------------

// The drafter's behaviour on one kind of text. The drafter's probability is q = sigmoid(x + noise), for a logit x ~
// N(mu, sd). The target agrees with the drafter with probability sigmoid(slope * x + shift - fall * (depth - 1)).
struct Style {
    double mu, sd, shift, fall;
    double slope = 0.65;
    double noise = 0.0;
    std::vector<double> logits = {};  // if given, logits[depth - 1] replaces shift and fall
};

struct Text {
    std::string name;
    std::function<Style(int pos)> style;
    int request = 0;            // tokens per request; 0 makes the whole text one request
    bool is_adversary = false;  // the drafter agrees only in rounds that are not verified
};

// A text whose random choices are determined by a seed.
class World {
  public:
    World(const Text & text, int n_tokens, uint64_t seed);

    const Text & text() const { return text_; }
    int n_tokens() const { return n_tokens_; }

    // Returns the number of tokens from `pos` to the end of the request.
    int n_left(int pos) const;

    // Returns the number of cells in the target's cache. Each request is a separate conversation with a prompt of 64
    // tokens.
    int n_kv(int pos) const { return text_.request > 0 ? 64 + pos % text_.request : pos; }

    // Returns the drafter's candidates for position `pos`, which a round reaches in draft step `depth`. A `key` of 0
    // stands for nodes whose ancestors are all accepted. Other keys distinguish the other nodes. A candidate that
    // equals the target's token has the token id true_token.
    std::vector<Candidate> propose(int pos, int depth, int k, uint64_t key) const;

    // Returns the number of tokens in each round under a fixed strategy. This number does not depend on the machine.
    std::vector<int> run_fixed(const Fixed & strategy) const;

    static constexpr Token true_token = 1;
    static constexpr Token other_token = 999;

  private:
    struct Position {
        float x, noise, luck;
        int style;
    };
    int matched_rank(const Position & here, const Style & s, double x, int depth) const;

    Text text_;
    int n_tokens_;
    uint64_t seed_;
    std::vector<Position> positions_;
    std::vector<Style> styles_;
};

// Provides the drafter's proposals and the target's tokens in one round.
class RoundDrafter {
  public:
    RoundDrafter(const World & world, int pos) : world_(world), pos_(pos) {}

    // Returns the candidates for each frontier node of the pool.
    std::vector<std::vector<Candidate>> propose(const DraftTree & pool, const std::vector<int32_t> & frontier,
                                                int k) const;

    // Returns the tokens that the target emits when it verifies `tree`.
    Tokens emit(const DraftTree & tree) const;

  private:
    const World & world_;
    int pos_;
};

// --- disturbances ----------------------------------------------------------------------------------------------------

struct Disturbance {
    double noise = 0.03;  // standard deviation of the logarithm of every time that the planner sees
    double stall_share = 0.0, stall_factor = 1.0;
    double kv_per_1k_row = 0.0;  // added share of target-only time per row of a batch and 1000 tokens of context
    double hidden = 0.0;         // extra time of every drafting round, in target-only steps
    double first_use_ms = 0.0;   // extra time of the first batch of each size
    double rebuild = 0.0;        // extra time of a change of the batch size, in target-only steps
    double capture = 0.0;        // extra time of the second batch after a change, in target-only steps
    std::function<double(int pos)> drift = {};                // factor on all times at a position
    std::function<double(int pos, int n_rows)> reshape = {};  // factor on the verification time
};

// Adds noise to true times. The planner measures the noisy times.
class NoisyClock {
  public:
    NoisyClock(const Disturbance & d, uint64_t seed) : d_(d), seed_(seed) {}

    double operator()(double ms);

  private:
    const Disturbance & d_;
    uint64_t seed_, n_ = 0;
};

// --- runs ------------------------------------------------------------------------------------------------------------

// State of a simulated run at the end of a round.
struct Mark {
    int n_tokens;
    double ms;
};

// Returns the minimum of (target-only time / run time) over all windows of at least `n` tokens. Windows begin and end
// at the ends of rounds. plain_ms contains the target-only time up to each token.
double worst_window(const std::vector<Mark> & marks, const std::vector<double> & plain_ms, int n);

struct Result {
    std::vector<Mark> marks;
    double ms = 0.0;           // time of the whole text
    double rejected_ms = 0.0;  // time of drafts that were not verified
    int n_rebuilt = 0;         // number of rounds with another batch size than the previous round
    std::map<int, int> rows;   // number of rounds by batch size
};

struct RunOptions {
    PlannerOptions planner;
    LearnedState costs;  // initial cost table
};

// One conversation on one machine.
class Scene {
  public:
    Scene(const Machine & machine, std::shared_ptr<const World> world, const Disturbance & disturbance)
        : machine_(machine), world_(std::move(world)), disturbance_(disturbance) {}

    // Returns the target-only time up to each token, as [n_tokens + 1].
    std::vector<double> plain_ms() const;

    // Returns the time of the whole text. rounds: result of World::run_fixed().
    double run_fixed(const Fixed & strategy, const std::vector<int> & rounds) const;

    Result run_planner(const RunOptions & options = {}) const;

  private:
    friend class Run;
    double drift(int pos) const { return disturbance_.drift ? disturbance_.drift(pos) : 1.0; }
    double verify_ms(int pos, int n_rows) const;
    bool begins_at(int pos) const;
    // Returns the extra time of the first batches after a prompt. Target-only batches count too.
    double begin_ms(int pos) const;
    double host_ms(int pos) const { return drift(pos) * machine_.plain_ms() * (machine_.host + disturbance_.hidden); }

    Machine machine_;
    std::shared_ptr<const World> world_;
    Disturbance disturbance_;
};

}  // namespace eaglecpp::sim
