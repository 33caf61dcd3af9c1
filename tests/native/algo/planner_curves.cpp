// SPDX-License-Identifier: MIT
// What the planner makes of the machines whose costs per row were published: `planner_curves`. One line a machine and
// text, tab-separated, speeds over plain decoding. benchmarks/planner_curves.py builds it and makes tables of it.
// With "first FILE", FILE being a cost table: the first 256 tokens on one machine, `planner_curves first FILE NUMBER`,
// of a planner that starts with that table.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "scenarios.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

// The first tokens on a machine, for a planner that starts with these prices; none are predicted if the
// file is empty.
static int first(const std::string & path, int number) {
    std::ifstream file(path);
    RunOptions options;
    options.cost_text.assign(std::istreambuf_iterator<char>(file), {});
    options.planner.pads_rows = true;
    Machine m = machine(number);
    m.is_device = true;
    Disturbance disturbance;
    disturbance.rebuild = 1.0 / m.plain_ms();
    for (int kind : {12, 2, 4}) {
        std::vector<double> speeds;
        for (int seed = 1; seed <= 32; ++seed) {
            const Scene scene(m, std::make_shared<World>(text(kind), 256, seed), disturbance);
            speeds.push_back(scene.plain_ms().back() / scene.run_planner(options).ms);
        }
        std::printf("%s\t%s\t%.3f\n", m.name.c_str(), text(kind).name.c_str(), geometric_mean(speeds));
    }
    return 0;
}

int main(int argc, char ** argv) {
    if (argc == 4 && argv[1] == std::string("first")) return first(argv[2], std::atoi(argv[3]));
    constexpr int n_tokens = 4096, n_seeds = 4;
    std::printf("machine\ttext\tplanner\tworst\tchain_3\tbest_fixed\tbest\trows\tdepth\ttrees\n");
    for (int number : {1, 6, 4, 5, 8, 11, 16, 17}) {
        for (int kind : {12, 2, 4}) {
            const Machine m = machine(number);
            std::vector<double> planner, chain, best_of_seed;
            double worst = 1e9, rows = 0.0, depth = 0.0;
            int n_rounds = 0;
            bool has_trees = false;
            std::string best_name;
            for (int seed = 1; seed <= n_seeds; ++seed) {
                const auto world = std::make_shared<World>(text(kind), n_tokens, seed);
                const Scene scene(m, world, {});
                const std::vector<double> plain = scene.plain_ms();
                const Result r = scene.run_planner();
                planner.push_back(plain.back() / r.ms);
                worst = std::min(worst, worst_window(r.marks, plain, 512));
                for (const auto & [n, count] : r.rows) rows += (double)n * count, n_rounds += count;
                depth += r.depth / n_seeds;
                has_trees = has_trees || r.has_trees;
                double best = 0.0;
                for (const Fixed & f : fixed_strategies()) {
                    const double speed = plain.back() / scene.run_fixed(f, world->run_fixed(f));
                    if (f.k == 1 && f.depth == 3) chain.push_back(speed);
                    if (speed > best) best = speed, best_name = f.name;
                }
                best_of_seed.push_back(best);
            }
            std::printf("%s\t%s\t%.2f\t%.2f\t%.2f\t%s\t%.2f\t%.1f\t%.1f\t%s\n", m.name.c_str(), text(kind).name.c_str(),
                        geometric_mean(planner), worst, geometric_mean(chain), best_name.c_str(),
                        geometric_mean(best_of_seed), rows / n_rounds, depth, has_trees ? "yes" : "no");
        }
    }
    return 0;
}
