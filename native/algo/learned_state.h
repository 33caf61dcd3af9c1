// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

namespace eaglecpp {

// What was learned, as numbers by name, for a file. Whoever reads one checks the numbers: they are untrusted.
using LearnedState = std::map<std::string, std::vector<double>>;

}  // namespace eaglecpp
