// SPDX-License-Identifier: MIT
// The one sink for our log lines and, through target/llama_bridge, for those of llama.cpp and ggml. Lines wait in a
// bounded queue until Python drains them into `logging`; a full queue drops its oldest lines. Any thread may log.
#pragma once

#include <string>
#include <vector>

namespace eaglecpp {

// the numbers of Python's logging levels
enum class LogLevel { debug = 10, info = 20, warning = 30, error = 40 };

struct LogLine {
    LogLevel level;
    std::string text;
};

void log_line(LogLevel level, std::string text);

// removes and returns what waits in the queue
std::vector<LogLine> log_drain();

// Error lines logged by this thread since construction: the reason that llama.cpp's boolean returns leave out.
class ErrorTrail {
  public:
    ErrorTrail();

    // " (llama.cpp: ...)" or "" when nothing was logged
    std::string text() const;

  private:
    size_t mark_;
};

}  // namespace eaglecpp
