// SPDX-License-Identifier: MIT
// Learned state as text: a kind line, the key of what it belongs to, one line of numbers per fact, and a count at the
// end that a cut-off file does not have. Reading never throws: foreign, damaged or older text gives nothing, and the
// caller measures again. File access is the caller's.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace eaglecpp {

struct StateLine {
    std::string name;
    std::vector<double> values;
};

// `kind` names format and version; `key` says what the state was learned on (line breaks become spaces)
std::string write_state(const std::string & kind, const std::string & key, const std::vector<StateLine> & lines);

// The lines of write_state(), or nothing if `text` is damaged, holds a number that is not finite, or was written for
// another kind or key.
std::optional<std::vector<StateLine>> read_state(const std::string & text, const std::string & kind,
                                                 const std::string & key);

}  // namespace eaglecpp
