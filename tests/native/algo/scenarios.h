// SPDX-License-Identifier: MIT
// Machines, texts and scenarios for the tests of the planner.
#pragma once

#include <string>
#include <vector>

#include "simulator.h"

namespace eaglecpp::sim {

// The curves of the machines 1 to 3, 5, 6, 8, 10 and 11 are published measurements (docs/research/planner.md names the
// sources). Their relative times are scaled to a plausible target-only step. All other curves are invented.
Machine machine(int number);
Text text(int number);

struct Cell;
// Function that returns "" if the criterion is met, otherwise the reason.
using Criterion = std::function<std::string(const Cell &)>;

struct Scenario {
    std::string name;
    int machine, text;
    Disturbance disturbance = {};
    bool is_stationary = true;  // the best fixed strategy is a fair baseline
    double window = 0.97;       // minimum speed of any 512-token window, relative to target-only decoding
    Criterion criterion = {};   // requirement of this scenario; the requirements of all scenarios apply too
    std::function<LearnedState(const Machine &, int seed)> costs = {};  // function that returns the initial cost table
};
std::vector<Scenario> scenarios();

// Cost of a changed batch size on a device: the total in ms, and the share that falls into the second batch.
struct Change {
    double all, capture;

    void put_into(Disturbance & d, const Machine & m) const;
    LearnedState costs(const Machine & m) const;  // returns the costs that are measured when an engine opens
};

// A scenario and its results, with one entry per seed. Speeds are relative to target-only decoding.
struct Cell {
    Scenario scenario;
    int n_tokens = 0;
    std::vector<Result> results;
    std::vector<double> speed, best_fixed, window;
    std::vector<std::string> best_name;

    double mean_speed() const;
    double mean_best() const;
    double mean_ratio() const;  // speed relative to the best fixed strategy, averaged over the seeds
    double worst_speed() const;
    double worst_window() const;
    double rejected_share() const;  // highest share over all seeds
};

double geometric_mean(const std::vector<double> & values);

// Prints the results of a run for tests/planner_ablation.py, without a line end.
void print_run(double speed, double window, double bound);

}  // namespace eaglecpp::sim
