// SPDX-License-Identifier: MIT
// The queue of our log lines and, through target/llama_bridge, of llama.cpp's and ggml's. It is bounded and drops its
// oldest lines when full. Python drains it into `logging`. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace eaglecpp {

// Python's logging levels.
enum class LogLevel { debug = 10, info = 20, warning = 30, error = 40 };

struct LogLine {
    LogLevel level;
    std::string text;
};

void log_line(LogLevel level, std::string text);

// Removes and returns the queued lines.
std::vector<LogLine> log_drain();

// Error lines that this thread logged since construction: the reasons that llama.cpp's boolean results leave out.
class ErrorTrail {
  public:
    ErrorTrail();

    // " (llama.cpp: ...)", or "" without errors.
    std::string text() const;

  private:
    size_t mark_;
};

}  // namespace eaglecpp
