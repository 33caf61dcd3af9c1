// SPDX-License-Identifier: MIT
// Several conversations in one verify batch; every `period` rounds some join or leave.
#pragma once

#include "simulator.h"

namespace eaglecpp::sim {

struct SharedScene {
    Machine machine;
    std::vector<Text> texts;  // one per place
    int n_rounds = 1000;
    int period = 50;
    uint64_t seed = 0;
    Disturbance disturbance = {};
};

struct SharedResult {
    double speed = 0.0;    // tokens per time against plain batching of the same conversations
    double window = 1e9;   // worst over windows of 512 rounds, that is, 512 plain tokens of each conversation
    double slowest = 1e9;  // worst conversation over its whole text
};

// `strategy`: null = the planner
SharedResult run_shared(const SharedScene & scene, const PlannerOptions & options, const Strategy * strategy);

}  // namespace eaglecpp::sim
