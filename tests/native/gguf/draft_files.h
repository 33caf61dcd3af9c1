// SPDX-License-Identifier: MIT
// Tiny drafter GGUFs with seeded weights, and every way in which one can be malformed.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace eaglecpp {

// eagle31: fc_norm, norm_output; latent: these and latent attention
enum class Kind { eagle, eagle3, eagle31, latent };

class DraftParts;

struct Flaw {
    const char * word = "";  // that the error must contain
    std::function<void(DraftParts &)> spoil = {};
    std::function<void(const std::string & path)> spoil_file = {};
};
const std::vector<Flaw> & flaws_of(Kind kind);

void write_draft_file(const std::string & path, Kind kind, const Flaw & flaw = {});

}  // namespace eaglecpp
