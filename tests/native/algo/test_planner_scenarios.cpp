// SPDX-License-Identifier: MIT
// Compares the planner with target-only decoding and with the best fixed strategy in hindsight, over machines, texts
// and disturbances. Prints the results of docs/research/planner.md. The arguments are names of scenarios (default: all)
// and a number of seeds (default: 4). With the argument "runs", prints one line for each run, for
// tests/planner_ablation.py.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "../check.h"
#include "base/error.h"
#include "scenarios.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

namespace {
constexpr int n_tokens = 4096;

// Texts, and the rounds of each fixed strategy on each text. The rounds do not depend on the machine.
struct Known {
    std::shared_ptr<const World> world;
    std::vector<std::vector<int>> rounds;  // rounds by number of the fixed strategy
};

const Known & known(int text_number, int seed, bool has_fixed) {
    static std::map<std::pair<int, int>, Known> all;
    Known & k = all[{text_number, seed}];
    if (!k.world) {
        k.world = std::make_shared<World>(text(text_number), n_tokens, hash(seed, text_number));
        for (size_t i = 0; has_fixed && i < fixed_strategies().size(); ++i) {
            k.rounds.push_back(k.world->run_fixed(fixed_strategies()[i]));
        }
    }
    return k;
}

void run_seed(Cell & cell, int seed, bool has_fixed) {
    const Scenario & s = cell.scenario;
    const Machine m = machine(s.machine);
    const Known & k = known(s.text, seed, has_fixed);
    const Scene scene(m, k.world, s.disturbance);
    const std::vector<double> plain = scene.plain_ms();
    double best = plain.back();
    std::string name = "plain";
    for (size_t i = 0; i < k.rounds.size(); ++i) {
        const Fixed & f = fixed_strategies()[i];
        if (f.nodes == 0 || (f.k > 1 && m.n_leaves == 1)) continue;
        const double ms = scene.run_fixed(f, k.rounds[i]);
        if (ms < best) best = ms, name = f.name;
    }
    RunOptions options;
    options.planner.pads_rows = m.is_device;
    if (s.costs) options.costs = s.costs(m, seed);
    Result r = scene.run_planner(options);
    cell.window.push_back(worst_window(r.marks, plain, 512));
    cell.speed.push_back(plain.back() / r.ms);
    cell.best_fixed.push_back(plain.back() / best);
    cell.best_name.push_back(name);
    cell.results.push_back(std::move(r));
}

void check(const Cell & c) {
    const auto expect = [&](bool is_fine, const std::string & what) {
        eaglecpp::test::report(is_fine, __FILE__, __LINE__, c.scenario.name + ": " + what);
    };
    expect(c.worst_speed() >= 0.97, strf("speed %.4f of target-only speed, expected at least 0.97", c.worst_speed()));
    expect(c.worst_window() >= c.scenario.window,
           strf("window at %.4f of target-only speed, expected at least %.2f", c.worst_window(), c.scenario.window));
    if (c.scenario.is_stationary) {
        expect(c.mean_ratio() >= 0.97, strf("%.4f of the best fixed speed, expected at least 0.97", c.mean_ratio()));
    }
    expect(c.rejected_share() <= 0.04,
           strf("drafts that were not verified took %.4f of the time, expected at most 0.04", c.rejected_share()));
    if (c.scenario.criterion) {
        const std::string found = c.scenario.criterion(c);
        expect(found.empty(), found);
    }
}

void print(const Cell & c) {
    std::printf("%-4s  %-31s  %-18s  %-11s  %6.3f  %7.3f  %5.3f  %6.3f  %6.3f  %5.2f\n", c.scenario.name.c_str(),
                machine(c.scenario.machine).name.c_str(), text(c.scenario.text).name.c_str(), c.best_name[0].c_str(),
                c.mean_best(), c.mean_speed(), c.mean_ratio(), c.worst_speed(), c.worst_window(),
                100.0 * c.rejected_share());
    std::fflush(stdout);
}
}  // namespace

int main(int argc, char ** argv) {
    std::set<std::string> wanted;
    int n_seeds = 4;
    bool prints_runs = false;
    for (int i = 1; i < argc; ++i) {
        if (argv[i][0] == 'S')
            wanted.insert(argv[i]);
        else if (argv[i] == std::string("runs"))
            prints_runs = true;
        else
            n_seeds = std::max(1, std::atoi(argv[i]));
    }
    if (!prints_runs)
        std::printf("%-4s  %-31s  %-18s  %-11s  %6s  %7s  %5s  %6s  %6s  %5s\n", "", "machine", "text", "best fixed",
                    "speed", "planner", "ratio", "worst", "window", "waste");
    std::vector<double> ratios;
    for (const Scenario & s : scenarios()) {
        if (!wanted.empty() && !wanted.count(s.name)) continue;
        Cell cell;
        cell.scenario = s;
        cell.n_tokens = n_tokens;
        for (int seed = 0; seed < n_seeds; ++seed) {
            run_seed(cell, seed, !prints_runs);
            if (!prints_runs) continue;
            std::printf("%s\t", s.name.c_str());
            print_run(cell.speed.back(), cell.window.back(), s.window);
            std::printf("\n");
        }
        if (prints_runs) continue;
        print(cell);
        check(cell);
        ratios.push_back(cell.mean_ratio());
    }
    if (prints_runs) return 0;
    if (ratios.empty()) return 2;
    std::printf("%zu scenarios, %d seeds: geometric mean of the ratio %.4f, least %.4f\n", ratios.size(), n_seeds,
                geometric_mean(ratios), *std::min_element(ratios.begin(), ratios.end()));
    if (wanted.empty()) CHECK(geometric_mean(ratios) >= 1.0);
    return eaglecpp::test::result();
}
