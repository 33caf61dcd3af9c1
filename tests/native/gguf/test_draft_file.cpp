// SPDX-License-Identifier: MIT
#include <filesystem>

#include "../check.h"
#include "base/error.h"
#include "draft/draft_file.h"
#include "draft_files.h"
#include "gguf/guard.h"

using namespace eaglecpp;

static std::string temp_file() {
    return (std::filesystem::temp_directory_path() / ("eaglecpp-draft-" + std::to_string(now_ms()) + ".gguf")).string();
}

static std::string error_of(const std::string & path) {
    try {
        DraftFile file(path);
    } catch (const Error & e) {
        return e.what();
    }
    return "";
}

TEST(every_flaw_is_refused_with_its_place) {
    const std::string path = temp_file();
    for (Kind kind : all_kinds) {
        write_draft_file(path, kind);
        CHECK(error_of(path).empty());
        for (const Flaw & flaw : flaws_of(kind)) {
            write_draft_file(path, kind, flaw);
            const std::string text = error_of(path);
            CHECK_MSG(text.find(flaw.word) != std::string::npos && text.find(path) != std::string::npos,
                      strf("'%s' and the path in '%s'", flaw.word, text.c_str()));
        }
    }
    std::filesystem::remove(path);
    CHECK(error_of(path).find("no such file") != std::string::npos);
    CHECK(error_of(std::filesystem::temp_directory_path().string()).find("not a regular file") != std::string::npos);
}
