// SPDX-License-Identifier: MIT
// What the planner makes of the machines whose costs per row were published: `planner_curves`. One line a machine and
// text, tab-separated, speeds over plain decoding. benchmarks/planner_curves.py builds it and makes tables of it.
#include <cstdio>
#include <memory>
#include <string>

#include "scenarios.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

int main() {
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
