// SPDX-License-Identifier: MIT
#include "scenarios.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace eaglecpp::sim {

// clang-format off
static std::vector<Machine> machines() {
    std::vector<Machine> all = {
        {"RTX 3090, 8B Q4_0", {{1, 6.4}, {2, 7.17}, {3, 7.68}, {4, 8.51}, {5, 9.79}, {6, 11.07}, {7, 12.48}, {8, 13.7},
                               {16, 13.82}, {32, 19.84}}},
        {"CPU Q4_0", {{1, 97}, {2, 103}, {3, 107}, {4, 112}, {5, 149}, {6, 165}, {7, 171}, {8, 151}, {9, 191},
                      {12, 201}, {16, 252}, {24, 354}, {32, 453}}},
        {"CPU Q8_0", {{1, 107}, {2, 117}, {3, 114}, {4, 127}, {5, 168}, {6, 175}, {7, 194}, {8, 161}, {9, 217},
                      {12, 216}, {16, 259}, {24, 352}, {32, 432}}},
        {"Metal", {{1, 20}, {2, 30}, {3, 40}, {4, 49}, {8, 86}, {16, 100}, {32, 120}}},
        {"M4 Pro, Q4_0, llama.cpp's Metal", {{1, 20}, {2, 36.2}, {3, 52.4}}},
        {"A100, 34B Q8_0", {{1, 25}, {2, 26.75}, {3, 28}, {4, 32}, {5, 32}, {6, 38.5}, {7, 40.25}, {8, 43}, {9, 97},
                            {10, 97.25}, {11, 97.75}, {64, 110}}},
        {"flat", {{1, 10}, {2, 10.2}, {3, 10.3}, {4, 10.4}, {16, 11.2}, {64, 15}}},
        {"tiny target", {{1, 0.3}, {2, 0.36}, {4, 0.4}, {8, 0.5}, {16, 0.6}}},
        {"moderate slope", {{1, 20}, {2, 24.8}, {3, 27.6}, {4, 32.6}, {5, 37.4}, {6, 42.2}, {7, 44}, {8, 45},
                            {16, 52}, {32, 68}}},
        {"NUMA 671B", {{1, 100}, {2, 121}, {3, 142}, {4, 166}, {5, 189}, {6, 217}, {7, 237}, {8, 265}}},
        {"Qwen3-235B", {{1, 50}, {2, 65}, {3, 70.5}, {4, 72.5}, {5, 78}, {6, 83.5}, {7, 88}, {8, 94}}},
        {"phone", {{1, 409}, {2, 518}}},
        {"RTX 3090, slow drafter", {}},
        {"RTX 3090, hybrid target", {}},
        {"deep CPU", {{1, 10.7}, {2, 12.8}, {3, 15.1}, {4, 17.7}, {5, 23.5}, {6, 26}, {8, 33}, {16, 60}}},
        {"experts on the CPU, worst case", {}},
        {"shared experts on the CPU", {}},
        {"H200, 8B Q4_0", {{1, 2.98}, {2, 3.25}, {3, 3.78}, {4, 4.23}, {5, 4.83}, {6, 5.19}, {7, 5.6}, {8, 6.14}, {9, 7.12},
                           {16, 7.57}, {32, 9.33}}},
        {"RTX 3090, a device", {}},
        {"flat, a device", {}},
    };
    const auto number = [&](int n) -> Machine & { return all[n - 1]; };
    number(12).level = 0.1;
    number(13).curve = number(14).curve = number(1).curve;
    number(13).level = 0.35, number(13).per_commit = 0.01;
    number(14).n_leaves = 1;
    number(15).level = 0.012, number(15).host = 0.005;
    // Eight of 128 experts per token, in host memory. The experts take four fifths of a target-only step. If n tokens
    // choose their experts independently, they read up to n times as many experts as one token.
    for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64}) {
        const double n_experts = 128.0 * (1.0 - std::pow(1.0 - 8.0 / 128.0, n));
        number(16).curve.emplace_back(n, 8.0 + 32.0 * n_experts / 8.0);
    }
    // These curves are published measurements of a mixture of experts whose neighbouring tokens share experts. The
    // drafter stays on the GPU.
    number(17).curve = number(11).curve;
    number(17).level = 0.02;
    number(18).host = 0.02;
    // A token of the target takes as long as a pass of the block drafter. The first batch of a new size takes longer
    // than a token.
    number(8).block = 1.0, number(8).level = 0.02, number(8).n_levels = 7;
    number(19).curve = number(1).curve;
    number(20).curve = number(7).curve;
    for (int n : {18, 19, 20}) number(n).is_device = true;
    return all;
}
// clang-format on

Machine machine(int number) {
    static const std::vector<Machine> all = machines();
    return all.at(number - 1);
}

namespace {
const Style code{2.2, 2.2, 0.8, 0.08}, prose{1.3, 2.0, -0.2, 0.15};
const Style hostile{0.5, 1.8, -5.0, 0.2}, confident{3.0, 1.0, -3.5, 0.0, 0.3};

Text always(const char * name, Style style) {
    return {name, [style](int) { return style; }};
}

Style published_eagle3() {
    // Unconditional acceptance rates by depth. The spread of the slopes lowers the mean slope, and the factor 1.17
    // compensates for this.
    const double rates[] = {1.0, .72, .50, .34, .22, .14, .09, .05, .03};
    Style s{0.0, 1.5, -0.2, 0.0};
    for (int d = 1; d <= 8; ++d) {
        const double a = rates[d] / rates[d - 1];
        s.logits.push_back(1.17 * std::log(a / (1.0 - a)));
    }
    return s;
}
std::vector<Text> texts() {
    const auto in_turn = [](int n) { return [n](int pos) { return pos / n % 2 ? hostile : code; }; };
    const auto changes = [](Style from, Style to) { return [=](int pos) { return pos < 2000 ? from : to; }; };
    const auto mixed = [](int pos) {
        const uint64_t kind = hash(11, pos / 32) % 3;
        return kind == 0 ? code : kind == 1 ? prose : hostile;
    };
    Style uninformative = prose;
    uninformative.noise = 2.0;
    std::vector<Text> all = {
        always("code", code),
        always("prose", prose),
        {"hostile answers of 64", [](int) { return hostile; }, 64},
        always("hostile", hostile),
        always("over-confident", confident),
        {"alternating 256", in_turn(256)},
        {"alternating 64", in_turn(64)},
        {"hostile, then code", changes(hostile, code)},
        {"code, then hostile", changes(code, hostile)},
        {"hostile answers of 128", [](int) { return hostile; }, 128},
        always("uninformative q", uninformative),
        always("published EAGLE-3", published_eagle3()),
        always("adversary", hostile),
        {"prose in answers of 128", [](int) { return prose; }, 128},
        {"requests of 32", mixed, 32},
        {"code in answers of 64", [](int) { return code; }, 64},
        {"well-trained drafter, answers of 64", [](int) { return Style{1.3, 2.0, 2.0, 0.1, 0.7}; }, 64},
        {"code in answers of 128", [](int) { return code; }, 128},
    };
    all[12].is_adversary = true;
    return all;
}
}  // namespace

Text text(int number) {
    static const std::vector<Text> all = texts();
    return all.at(number - 1);
}

// --- cells ---------------------------------------------------------------------------------------------------------

double geometric_mean(const std::vector<double> & values) {
    double sum = 0.0;
    for (double v : values) sum += std::log(v);
    return std::exp(sum / (double)values.size());
}

void print_run(double speed, double window, double bound) {
    std::printf("%.6f\t%.6f\t%.3f", speed, window, bound);
}

double Cell::mean_speed() const {
    return geometric_mean(speed);
}
double Cell::mean_best() const {
    return geometric_mean(best_fixed);
}
double Cell::mean_ratio() const {
    return mean_speed() / mean_best();
}
double Cell::worst_speed() const {
    return *std::min_element(speed.begin(), speed.end());
}
double Cell::worst_window() const {
    return *std::min_element(window.begin(), window.end());
}

double Cell::rejected_share() const {
    double worst = 0.0;
    for (const Result & r : results) worst = std::max(worst, r.rejected_ms / r.ms);
    return worst;
}

// --- criteria --------------------------------------------------------------------------------------------------------

namespace {

std::string at_least(const char * what, double found, double least) {
    return found >= least ? "" : strf("%s %.3f, expected at least %.3f", what, found, least);
}

Criterion speed_at_least(double least) {
    return [=](const Cell & c) { return at_least("speed", c.mean_speed(), least); };
}

Criterion ratio_at_least(double least) {
    return [=](const Cell & c) { return at_least("ratio to best fixed", c.mean_ratio(), least); };
}

// Criterion: drafting reaches 80 % of its final gain soon after position 2000. The median run needs at most `median`
// tokens for this, and every run at most `worst` tokens.
Criterion wakes_within(int median, int worst) {
    return [=](const Cell & c) {
        std::vector<int> delays;
        for (const Result & r : c.results) {
            const auto speed = [&](int from, int to) {
                const auto ms_at = [&](int pos) {
                    return std::lower_bound(r.marks.begin(), r.marks.end(), pos,
                                            [](const Mark & m, int p) { return m.n_tokens < p; })
                        ->ms;
                };
                return machine(c.scenario.machine).plain_ms() * (to - from) / (ms_at(to) - ms_at(from));
            };
            const double gain = speed(c.n_tokens - 1000, c.n_tokens) - 1.0;
            int delay = 0;
            while (delay < 1500 && speed(2000 + delay, 2064 + delay) - 1.0 < 0.8 * gain) ++delay;
            delays.push_back(delay);
        }
        std::sort(delays.begin(), delays.end());
        const int found = (delays[(delays.size() - 1) / 2] + delays[delays.size() / 2]) / 2;
        if (found <= median && delays.back() <= worst) return std::string();
        return strf("wakes after %d tokens (median), %d (worst), expected %d and %d", found, delays.back(), median,
                    worst);
    };
}

// Criterion: the share of rounds that change the batch size is below `most_rebuilt`.
Criterion keeps_sizes(double most_rebuilt) {
    return [=](const Cell & c) {
        double n_rebuilt = 0.0, n_rounds = 0.0;
        for (const Result & r : c.results) {
            n_rebuilt += r.n_rebuilt;
            n_rounds += (double)r.marks.size();
        }
        return n_rebuilt <= most_rebuilt * n_rounds ? "" : strf("%.3f of the rounds change size", n_rebuilt / n_rounds);
    };
}

// --- scenarios -------------------------------------------------------------------------------------------------------

// Returns a cost table in which a batch of n rows takes factor(n) times as long as on the machine's curve.
template <typename Factor>
LearnedState costs(const Machine & m, Factor factor) {
    CostTable table;
    for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64}) {
        for (int i = 0; i < 3; ++i) table.learn_verify(n, m.verify_ms(n) * factor(n));
    }
    return table.state();
}

LearnedState half_slope(const Machine & m, int) {
    return costs(m, [&](int n) { return 0.5 + 0.5 * m.plain_ms() / m.verify_ms(n); });
}

LearnedState exact(const Machine & m, int) {
    return costs(m, [](int) { return 1.0; });
}

// Returns a learned state that was measured when the machine was twice as fast.
LearnedState half(const Machine & m, int) {
    return costs(m, [](int) { return 0.5; });
}

// Returns costs in which some batch sizes were only measured while another program used the cores: sizes of 2 rows, and
// of 7 or more rows.
LearnedState busy_at_some_sizes(const Machine & m, int) {
    return costs(m, [](int n) { return n == 2 || n >= 7 ? 12.0 : 1.0; });
}

LearnedState wrong_by_20_percent(const Machine & m, int seed) {
    return costs(m, [&](int n) { return n == 1 ? 1.0 : std::exp(0.2 * normal(hash(seed, n))); });
}

Scenario scenario(const std::string & name, int machine, int text, Criterion criterion = {}) {
    Scenario s{name, machine, text};
    s.is_stationary = text <= 5 || text == 11 || text == 12;
    s.criterion = std::move(criterion);
    return s;
}

std::vector<Scenario> undisturbed() {
    return {
        scenario("S1", 1, 1, speed_at_least(1.9)),
        scenario("S2", 1, 2),
        scenario("S4", 1, 4),
        scenario("S5", 2, 1),
        scenario("S6", 2, 2),
        scenario("S7", 2, 4),
        scenario("S8", 3, 5),
        scenario("S9", 4, 1),
        scenario("S11", 5, 1),
        scenario("S12", 6, 1),
        scenario("S22", 12, 2),
        scenario("S23", 13, 2),
        scenario("S24", 14, 2),
        scenario("S25", 1, 8, wakes_within(150, 600)),
        scenario("S26", 2, 8, wakes_within(150, 600)),
        scenario("S27", 9, 8, wakes_within(150, 600)),
        scenario("S28", 1, 9),
        scenario("S29", 1, 6, ratio_at_least(1.0)),
        scenario("S30", 1, 7),
        scenario("S32", 1, 11, ratio_at_least(0.96)),
        scenario("S41", 1, 15, ratio_at_least(1.0)),
        scenario("S42", 7, 13),
    };
}

std::vector<Scenario> disturbed() {
    Scenario s19 = scenario("S19", 9, 2);
    s19.costs = half_slope;
    Scenario s34 = scenario("S34", 1, 4), s35 = scenario("S35", 1, 2);
    s34.disturbance.drift = s35.disturbance.drift = [](int pos) { return pos / 150 % 2 ? 2.0 : 1.0; };
    Scenario s36 = scenario("S36", 9, 2);
    s36.is_stationary = false;
    s36.disturbance.reshape = [](int pos, int n) { return pos < 1500 ? 1.0 : 1.0 + 0.12 * (n - 1); };
    Scenario s37 = scenario("S37", 2, 4);
    s37.disturbance.noise = 0.25;
    s37.disturbance.stall_share = 0.03;
    s37.disturbance.stall_factor = 6.0;
    s37.window = 0.96;
    // Batches of several rows take too long for a while, because another program runs.
    Scenario s90 = scenario("S90", 2, 1, speed_at_least(1.3));
    s90.disturbance.reshape = [](int pos, int n) { return pos < 1000 && n > 1 ? 2.5 : 1.0; };
    s90.is_stationary = false;
    Scenario s38 = scenario("S38", 1, 2);
    s38.disturbance.hidden = 0.4;
    Scenario s39a = scenario("S39a", 1, 1), s39b = scenario("S39b", 1, 4);
    s39a.costs = s39b.costs = wrong_by_20_percent;
    s39a.window = s39b.window = 0.85;
    Scenario s40 = scenario("S40", 1, 1, speed_at_least(1.7));
    s40.disturbance.first_use_ms = 30.0;
    // The first use of each size takes time in a new process. A known cost table must not hide this time.
    Scenario s51 = scenario("S51", 1, 4);
    s51.disturbance.first_use_ms = 30.0;
    s51.costs = exact;
    s51.window = 0.965;
    // A target with many narrow layers. Attention makes rows more expensive as the answer grows, and each new batch
    // size needs large graphs.
    Scenario s52 = scenario("S52", 15, 16, ratio_at_least(1.0));
    s52.disturbance.kv_per_1k_row = 2.0;
    s52.disturbance.rebuild = 0.07;
    // All conversations are new, and the drafter is far better than the planner expects.
    Scenario s53 = scenario("S53", 9, 17, ratio_at_least(1.0));
    // Experts in host memory and four texts: code, prose, a text with hardly any accepted draft, and a text that
    // changes.
    Scenario s54 = scenario("S54", 16, 1), s55 = scenario("S55", 16, 2);
    Scenario s56 = scenario("S56", 16, 4), s57 = scenario("S57", 16, 6);
    Scenario s58 = scenario("S58", 17, 2), s59 = scenario("S59", 17, 4);
    Scenario s60 = scenario("S60", 1, 4), s61 = scenario("S61", 1, 1, speed_at_least(1.9));
    s60.costs = half;
    s61.costs = busy_at_some_sizes;
    // On a tiny target, a change of the batch size takes longer than a token. The planner charges this time to
    // drafting, not to the next target-only round.
    Scenario s80 = scenario("S80", 8, 3), s81 = scenario("S81", 8, 2),
             s82 = scenario("S82", 8, 1, speed_at_least(1.38));
    s80.disturbance.rebuild = s81.disturbance.rebuild = s82.disturbance.rebuild = 1.2;
    s82.is_stationary = false;  // the best strategy keeps one batch size
    return {s80, s81, s82, s19, s34, s35, s36, s37, s38, s39a, s39b, s40,
            s51, s52, s53, s54, s55, s56, s57, s58, s59, s60,  s61,  s90};
}

Scenario on_device(int number, int machine_number, int text, const Change & change, Criterion criterion) {
    Scenario s = scenario(strf("S%d", number), machine_number, text, std::move(criterion));
    s.is_stationary = false;
    change.put_into(s.disturbance, machine(machine_number));
    s.costs = [change](const Machine & m, int) { return change.costs(m); };
    return s;
}

// Devices reuse a graph while the batch size stays the same, so an answer keeps its batch size. On a fast card, a
// change of the batch size takes as long as two target-only rounds (six for models of 1 GB). The planner chooses trees
// if the costs favour trees.
std::vector<Scenario> on_devices() {
    std::vector<Scenario> all = {
        on_device(62, 19, 1, {1.0, 0.0}, keeps_sizes(0.05)),
        on_device(63, 19, 2, {1.0, 0.0}, keeps_sizes(0.05)),
        on_device(64, 20, 2, {1.0, 0.0}, keeps_sizes(1.0)),
    };
    for (double change : {6.0, 18.0}) {
        for (const auto & [text, least] : {std::pair{1, 1.6}, {2, 1.3}, {4, 0.97}, {18, 1.7}, {14, 1.3}, {10, 0.97}}) {
            // In an answer without drafts, the last token must not change the batch size.
            const Criterion criterion = text == 10 ? keeps_sizes(0.012) : speed_at_least(least);
            all.push_back(on_device(62 + (int)all.size(), 18, text, {change, 0.75 * change}, criterion));
        }
    }
    // The planner resumes a paused drafter within the answer if the ledger covers both changes of the batch size.
    for (int text : {8, 9}) {
        for (const auto & [change, least] : {std::pair{6.0, 1.25}, {18.0, text == 8 ? 0.99 : 1.2}}) {
            const int number = (text == 8 ? 62 : 66) + (int)all.size();
            all.push_back(on_device(number, 18, text, {change, 0.75 * change}, speed_at_least(least)));
        }
    }
    return all;
}

}  // namespace

void Change::put_into(Disturbance & d, const Machine & m) const {
    d.rebuild = (all - capture) / m.plain_ms();
    d.capture = capture / m.plain_ms();
}

LearnedState Change::costs(const Machine & m) const {
    CostTable known;
    for (int n : {1, 2, 3, 4, 5, 8, 16}) {
        for (int i = 0; i < 3; ++i) known.learn_verify(n, m.verify_ms(n));
    }
    for (int i = 1; m.is_device && i <= 3; ++i) known.learn_alike(2, i, 1, m.plain_ms() + (i < 3 ? all / 2.0 : 0.0));
    return known.state();
}

std::vector<Scenario> scenarios() {
    std::vector<Scenario> all = undisturbed();
    for (const auto & more : {disturbed(), on_devices()}) all.insert(all.end(), more.begin(), more.end());
    return all;
}

}  // namespace eaglecpp::sim
