// SPDX-License-Identifier: MIT
// Entry point of libFuzzer. For any bytes, opening a DraftFile must either succeed or throw Error.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "draft/draft_file.h"

#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    static const std::string path = [] {
        const bool has_shm = std::filesystem::is_directory("/dev/shm");
        const auto dir = has_shm ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
        return (dir / ("eaglecpp-fuzz-" + std::to_string(getpid()))).string();
    }();
    std::ofstream(path, std::ios::binary).write((const char *)data, (std::streamsize)size);
    try {
        const eaglecpp::DraftFile file(path);
        for (const auto & t : file.gguf().tensors()) {
            uint8_t last;
            if (t.n_bytes > 0) file.gguf().read(t, t.n_bytes - 1, &last, 1);
        }
    } catch (const eaglecpp::Error &) {
        // The file was refused with a reason, which is allowed.
    }
    std::remove(path.c_str());
    return 0;
}
