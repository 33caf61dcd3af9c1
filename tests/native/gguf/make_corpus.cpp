// SPDX-License-Identifier: MIT
// `make_corpus FOLDER` writes the seeds of the fuzz target: one valid drafter of each kind, and all malformed drafters.
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
