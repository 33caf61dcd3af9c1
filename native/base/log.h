// SPDX-License-Identifier: MIT
// The queue of log lines: ours and, through target/llama_bridge, those of llama.cpp and ggml. It is bounded and drops
// its oldest lines when full. Python drains it into `logging`. Thread-safe.
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

// Collects the error lines that this thread logs after construction. They name the reasons that llama.cpp's boolean
// results leave out.
class ErrorTrail {
  public:
    ErrorTrail();

    // Returns the lines as " (llama.cpp: ...)", or "" without errors.
    std::string text() const;

  private:
    size_t mark_;
};

}  // namespace eaglecpp
