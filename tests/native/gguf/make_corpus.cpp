// SPDX-License-Identifier: MIT
// Seeds of the fuzz target: `make_corpus FOLDER` writes one valid drafter of each kind and every malformed one.
#include <cstdio>
#include <filesystem>

#include "draft_files.h"

int main(int argc, char ** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    const std::filesystem::path folder(argv[1]);
    std::filesystem::create_directories(folder);
    using eaglecpp::Kind;
    for (const auto & [name, kind] : {std::pair{"eagle", Kind::eagle},
                                      {"eagle3", Kind::eagle3},
                                      {"eagle31", Kind::eagle31},
                                      {"latent", Kind::latent}}) {
        eaglecpp::write_draft_file((folder / name).string(), kind);
    }
    int n = 0;
    for (const auto & [kind, flaws] : {std::pair{Kind::eagle31, &eaglecpp::all_flaws},
                                       {Kind::eagle, &eaglecpp::eagle_flaws},
                                       {Kind::latent, &eaglecpp::latent_flaws}}) {
        for (const auto & [flaw, word] : *flaws) {
            eaglecpp::write_draft_file((folder / ("flaw-" + std::to_string(n++))).string(), kind, flaw);
        }
    }
    return 0;
}
