// SPDX-License-Identifier: MIT
// Seeds of the fuzz target: `make_corpus FOLDER` writes one valid drafter of each architecture and every malformed one.
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
    for (bool eagle31 : {false, true}) {
        eaglecpp::write_draft_file((folder / (eagle31 ? "eagle31" : "eagle3")).string(), eagle31);
    }
    int n = 0;
    for (const auto & [flaw, word] : eaglecpp::all_flaws) {
        eaglecpp::write_draft_file((folder / ("flaw-" + std::to_string(n++))).string(), true, flaw);
    }
    return 0;
}
