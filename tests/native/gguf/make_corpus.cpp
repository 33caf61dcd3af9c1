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
    int n = 0;
    for (Kind kind : eaglecpp::all_kinds) {
        eaglecpp::write_draft_file((folder / std::to_string(n++)).string(), kind);
        for (const eaglecpp::Flaw & flaw : eaglecpp::flaws_of(kind)) {
            eaglecpp::write_draft_file((folder / std::to_string(n++)).string(), kind, flaw);
        }
    }
    return 0;
}
