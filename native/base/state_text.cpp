// SPDX-License-Identifier: MIT
#include "base/state_text.h"

#include <cmath>
#include <locale>
#include <sstream>

namespace eaglecpp {

namespace {
constexpr size_t n_lines_max = 4096;  // far above what we write; keeps hostile text from eating memory
constexpr size_t n_values_max = 128;

std::string one_line(std::string text) {
    for (char & c : text) {
        if (c == '\n' || c == '\r') c = ' ';
    }
    return text;
}

std::optional<StateLine> read_line(const std::string & text) {
    // The process may run under a locale with decimal commas; the files never do.
    std::istringstream in(text);
    in.imbue(std::locale::classic());
    StateLine line;
    if (!(in >> line.name)) return std::nullopt;
    double value;
    while (in >> value) {
        if (!std::isfinite(value) || line.values.size() == n_values_max) return std::nullopt;
        line.values.push_back(value);
    }
    if (!in.eof()) return std::nullopt;
    return line;
}
}  // namespace

std::string write_state(const std::string & kind, const std::string & key, const std::vector<StateLine> & lines) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out.precision(9);
    out << kind << "\nkey " << one_line(key) << "\n";
    for (const StateLine & line : lines) {
        out << line.name;
        for (double v : line.values) out << ' ' << v;
        out << '\n';
    }
    out << "end " << lines.size() << '\n';
    return out.str();
}

std::optional<std::vector<StateLine>> read_state(const std::string & text, const std::string & kind,
                                                 const std::string & key) {
    std::istringstream in(text);
    std::string row;
    if (!std::getline(in, row) || row != kind) return std::nullopt;
    if (!std::getline(in, row) || row != "key " + one_line(key)) return std::nullopt;
    std::vector<StateLine> lines;
    while (std::getline(in, row)) {
        std::optional<StateLine> line = read_line(row);
        if (!line || lines.size() == n_lines_max) return std::nullopt;
        if (line->name == "end") {
            const bool is_whole = line->values.size() == 1 && line->values[0] == (double)lines.size();
            if (!is_whole) return std::nullopt;
            return lines;
        }
        lines.push_back(std::move(*line));
    }
    return std::nullopt;
}

}  // namespace eaglecpp
