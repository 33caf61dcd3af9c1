// SPDX-License-Identifier: MIT
#include "target/llama_start.h"

#include <ggml-backend.h>
#include <llama.h>

#include <mutex>
#include <string>
#include <thread>

#include "base/log.h"
#include "kernels/hook.h"

namespace eaglecpp {

// llama.cpp logs pieces of lines; GGML_LOG_LEVEL_CONT continues the line before.
static void on_log(ggml_log_level level, const char * text, void *) {
    thread_local std::string line;
    thread_local LogLevel line_level = LogLevel::info;
    if (level != GGML_LOG_LEVEL_CONT) {
        line_level = level == GGML_LOG_LEVEL_ERROR  ? LogLevel::error
                     : level == GGML_LOG_LEVEL_WARN ? LogLevel::warning
                     : level == GGML_LOG_LEVEL_INFO ? LogLevel::info
                                                    : LogLevel::debug;
    }
    line += text;
    if (!line.empty() && line.back() == '\n') {
        log_line(line_level, line);
        line.clear();
    }
}

void route_logs() {
    llama_log_set(on_log, nullptr);
}

void llama_start() {
    route_logs();  // again: llama_cpp installs its own callback when it is imported, perhaps after us
    static std::once_flag once;
    std::call_once(once, [] {
        ggml_backend_load_all();
        llama_backend_init();
        // Before anybody asks ggml where weights may live. On a thread of its own: it tries the kernels, and OpenMP's
        // threads for that would make a child forked from this one wait for them (base/process.h).
        std::thread([] { kernels::status(); }).join();
    });
}

}  // namespace eaglecpp
