// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

namespace eaglecpp {

// Learned numbers by name, as stored in a file. The file is untrusted, so readers must check the numbers.
using LearnedState = std::map<std::string, std::vector<double>>;

}  // namespace eaglecpp
