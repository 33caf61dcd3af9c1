// SPDX-License-Identifier: MIT
// Several conversations in one batch against plain batching and the best fixed chain: scenarios S44 to S46.
#include <cstdio>

#include "../check.h"
#include "base/error.h"
#include "scenarios.h"
#include "shared_scene.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

namespace {
struct Case {
    const char * name;
    int machine;
    std::vector<int> texts;
};

struct Sums {
    std::vector<double> speed, window, slowest;

    void add(const SharedResult & r) {
        speed.push_back(r.speed);
        window.push_back(r.window);
        slowest.push_back(r.slowest);
    }
    void print(const char * name) const {
        std::printf("  %-10s %.3f / %.3f / %.3f", name, geometric_mean(speed), geometric_mean(window),
                    geometric_mean(slowest));
    }
};

void run(const Case & c) {
    Sums planned;
    std::vector<double> best;
    for (int seed = 0; seed < 4; ++seed) {
        SharedScene scene;
        scene.machine = machine(c.machine);
        scene.seed = seed;
        for (int t : c.texts) scene.texts.push_back(text(t));
        best.push_back(1.0);
        for (int depth = 1; depth <= 6; ++depth) {
            const Strategy chain = Strategy::make("chain", 1, depth, depth);
            best.back() = std::max(best.back(), run_shared(scene, {}, &chain).speed);
        }
        planned.add(run_shared(scene, {}, nullptr));
    }
    std::printf("%-4s %2zu on %-15s best fixed %.3f", c.name, c.texts.size(), machine(c.machine).name.c_str(),
                geometric_mean(best));
    planned.print("planner");
    std::printf("\n");
    const auto expect = [&](bool is_fine, const std::string & what) {
        eaglecpp::test::report(is_fine, __FILE__, __LINE__, std::string(c.name) + ": " + what);
    };
    for (double s : planned.speed) expect(s >= 0.97, strf("all together at %.3f of plain, expected 0.97", s));
    // sixteen that try at the same time what does not pay cost a little more
    const double least = c.texts.size() > 8 ? 0.955 : 0.965;
    for (double w : planned.window) expect(w >= least, strf("a window at %.3f of plain, expected %.3f", w, least));
    const double ratio = geometric_mean(planned.speed) / geometric_mean(best);
    expect(ratio >= 0.97, strf("%.3f of the best fixed chain, expected 0.97", ratio));
}
}  // namespace

int main() {
    std::printf("total speed / worst window of 512 rounds / slowest conversation, against plain batching\n");
    run({"S44", 1, {1, 1, 2, 4}});
    run({"S45", 7, {1, 1, 1, 1, 2, 2, 4, 4}});
    run({"S46", 2, {1, 2, 4, 1, 2, 4, 3, 1, 2, 4, 1, 2, 4, 1, 3, 2}});
    return eaglecpp::test::result();
}
