// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

namespace eaglecpp {

// Learned numbers by name, for a file. Readers must check them: the file is untrusted.
using LearnedState = std::map<std::string, std::vector<double>>;

}  // namespace eaglecpp
