// SPDX-License-Identifier: MIT
// Tiny drafter GGUFs with seeded weights: a valid file of each kind, and files with one flaw each.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace eaglecpp {

// eagle31: fc_norm, norm_output. windows: eagle31 and three layers, the second with full attention. latent: eagle31
// with latent attention. dspark: a Markov head, with llama.cpp's architecture name. dflash2: convolutions and a
// selector, with our architecture name.
enum class Kind { eagle, eagle3, eagle31, windows, latent, dspark, dflash2 };
constexpr Kind all_kinds[] = {Kind::eagle,  Kind::eagle3, Kind::eagle31, Kind::windows,
                              Kind::latent, Kind::dspark, Kind::dflash2};

class DraftParts;

struct Flaw {
    const char * word = "";  // text that the error message contains
    std::function<void(DraftParts &)> spoil = {};
    std::function<void(const std::string & path)> spoil_file = {};
};
const std::vector<Flaw> & flaws_of(Kind kind);

void write_draft_file(const std::string & path, Kind kind, const Flaw & flaw = {});

}  // namespace eaglecpp
