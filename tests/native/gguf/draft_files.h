// SPDX-License-Identifier: MIT
// Tiny drafter GGUFs with seeded weights, and every way in which one can be malformed.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace eaglecpp {

// eagle31: fc_norm, norm_output; windows: these and three layers, of which the second sees everything; latent: these
// and latent attention; dspark: a Markov head, and llama.cpp's architecture; dflash2: convolutions, a selector, and
// ours
enum class Kind { eagle, eagle3, eagle31, windows, latent, dspark, dflash2 };
constexpr Kind all_kinds[] = {Kind::eagle,  Kind::eagle3, Kind::eagle31, Kind::windows,
                              Kind::latent, Kind::dspark, Kind::dflash2};

class DraftParts;

struct Flaw {
    const char * word = "";  // that the error must contain
    std::function<void(DraftParts &)> spoil = {};
    std::function<void(const std::string & path)> spoil_file = {};
};
const std::vector<Flaw> & flaws_of(Kind kind);

void write_draft_file(const std::string & path, Kind kind, const Flaw & flaw = {});

}  // namespace eaglecpp
