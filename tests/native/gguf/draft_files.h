// SPDX-License-Identifier: MIT
// Tiny drafter GGUFs with seeded weights. There is a valid file of each kind, and there are files with one flaw each.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace eaglecpp {

// eagle31 has fc_norm and norm_output. windows is eagle31 with three layers, the second of which has full attention.
// latent is eagle31 with latent attention. dspark has a Markov head and llama.cpp's architecture name. dflash2 has
// convolutions, a selector and our architecture name.
enum class Kind { eagle, eagle3, eagle31, windows, latent, dspark, dflash2 };
constexpr Kind all_kinds[] = {Kind::eagle,  Kind::eagle3, Kind::eagle31, Kind::windows,
                              Kind::latent, Kind::dspark, Kind::dflash2};

class DraftParts;

struct Flaw {
    const char * word = "";  // text that the error message must contain
    std::function<void(DraftParts &)> spoil = {};
    std::function<void(const std::string & path)> spoil_file = {};
};
const std::vector<Flaw> & flaws_of(Kind kind);

void write_draft_file(const std::string & path, Kind kind, const Flaw & flaw = {});

}  // namespace eaglecpp
