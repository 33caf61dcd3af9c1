// SPDX-License-Identifier: MIT
// The machines, texts and scenarios the planner is tested on.
#pragma once

#include <string>
#include <vector>

#include "simulator.h"

namespace eaglecpp::sim {

// Curves of 1 to 3, 5, 6, 8, 10 and 11 are published measurements (docs/research/planner.md names the sources),
// relative times brought to a plausible step; the rest are stand-ins.
Machine machine(int number);
Text text(int number);

struct Cell;
using Criterion = std::function<std::string(const Cell &)>;  // "" = reached, else what was found

struct Scenario {
    std::string name;
    int machine, text;
    Disturbance disturbance = {};
    bool is_stationary = true;  // the best fixed strategy is a fair measure
    double window = 0.97;       // least speed of any 512-token window against plain
    Criterion criterion = {};   // beyond the lines common to all
    std::function<LearnedState(const Machine &, int seed)> costs = {};  // a cost table to start with
};
std::vector<Scenario> scenarios();

// What another size of batch costs on a device, in ms: all of it, and what of it falls into the second batch.
struct Change {
    double all, capture;

    void put_into(Disturbance & d, const Machine & m) const;
    LearnedState costs(const Machine & m) const;  // with the prices that are measured when an engine opens
};

// A scenario and its results, one entry per seed; speeds against plain decoding.
struct Cell {
    Scenario scenario;
    int n_tokens = 0;
    std::vector<Result> results;
    std::vector<double> speed, best_fixed, window;
    std::vector<std::string> best_name;

    double mean_speed() const;
    double mean_best() const;
    double mean_ratio() const;  // to the best fixed strategy
    double worst_speed() const;
    double worst_window() const;
    double rejected_share() const;  // worst
};

double geometric_mean(const std::vector<double> & values);

// Prints what tests/planner_ablation.py reads of a run, without a line end.
void print_run(double speed, double window, double bound);

}  // namespace eaglecpp::sim
