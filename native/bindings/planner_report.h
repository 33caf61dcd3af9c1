// SPDX-License-Identifier: MIT
// What the planner has learned, as plain dicts: for `eaglecpp bench --plan` and tests.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/engine.h"

namespace eaglecpp {

nanobind::dict planner_report(const Engine & engine, int sequence);

}  // namespace eaglecpp
