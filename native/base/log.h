// SPDX-License-Identifier: MIT
// The queue of log lines: our own lines and, through target/llama_bridge, the lines of llama.cpp and ggml. The queue is
// bounded and drops its oldest lines when full. Python moves the lines into `logging`. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace eaglecpp {

// Log levels with the numbers of Python's logging module.
enum class LogLevel { debug = 10, info = 20, warning = 30, error = 40 };

struct LogLine {
    LogLevel level;
    std::string text;
};

void log_line(LogLevel level, std::string text);

// Removes and returns the queued lines.
std::vector<LogLine> log_drain();

// Collects the error lines that this thread logs after construction. llama.cpp's functions only return false, and these
// lines say why.
class ErrorTrail {
  public:
    ErrorTrail();

    // Returns the collected lines as " (llama.cpp: ...)", or "" if there are none.
    std::string text() const;

  private:
    size_t mark_;
};

}  // namespace eaglecpp
