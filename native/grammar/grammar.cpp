// SPDX-License-Identifier: MIT
#include "grammar/grammar.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace eaglecpp {

using Type = Grammar::Type;
using Element = Grammar::Element;

static bool is_digit(char c) {
    return '0' <= c && c <= '9';
}

static bool is_name_char(char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '-' || is_digit(c);
}

// Reads the text once, from left to right; open groups lie on a stack of its own.
class GrammarReader {
  public:
    GrammarReader(Grammar & out, const std::string & text) : out_(out), text_(text) {}

    // the names of the rules; groups have none
    std::vector<std::string> read() {
        out_.elements_ = {{Type::rule}, {Type::accept}};
        skip_space(true);
        while (pos_ < text_.size()) read_rule();
        const auto it = numbers_.find("root");
        if (it == numbers_.end()) fail(ErrorKind::grammar, "the grammar has no rule 'root'");
        out_.elements_[Grammar::start].value = it->second;
        std::vector<std::string> names(out_.rules_.size());
        for (const auto & [name, rule] : numbers_) {
            names[rule] = name;
            if (out_.rules_[rule].begin > 0) continue;
            fail(ErrorKind::grammar, "the grammar uses a rule '%.60s' and does not define it", name.c_str());
        }
        return names;
    }

  private:
    struct Group {
        uint32_t rule;
        size_t begin;  // in open_
        size_t last;   // in open_: what a repetition would repeat
    };

    [[noreturn]] void wrong(const char * expected) const {
        const size_t line_begin = pos_ == 0 ? 0 : text_.rfind('\n', pos_ - 1) + 1;  // npos + 1 is 0
        const int line = 1 + (int)std::count(text_.begin(), text_.begin() + (long)pos_, '\n');
        size_t n = 12;  // and no part of a character
        while (n > 0 && pos_ + n < text_.size() && ((unsigned char)text_[pos_ + n] & 0xC0) == 0x80) --n;
        const std::string found = pos_ < text_.size() ? "'" + text_.substr(pos_, n) + "'" : "the end";
        fail(ErrorKind::grammar, "the grammar does not parse: line %d, column %d: expected %s, found %s", line,
             (int)(pos_ - line_begin) + 1, expected, found.c_str());
    }

    char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }

    void skip_space(bool newline_ok) {
        for (; pos_ < text_.size(); ++pos_) {
            const char c = text_[pos_];
            if (c == '#') {
                pos_ = std::min(text_.find_first_of("\r\n", pos_), text_.size());
                if (pos_ == text_.size()) return;
                --pos_;  // the line's end counts or does not
            } else if (c != ' ' && c != '\t' && !(newline_ok && (c == '\r' || c == '\n'))) {
                return;
            }
        }
    }

    uint32_t rule_number(const std::string & name) {
        const auto [it, is_new] = numbers_.emplace(name, (uint32_t)out_.rules_.size());
        if (is_new) add_rule();
        return it->second;
    }

    uint32_t add_rule() {
        out_.rules_.emplace_back();
        return (uint32_t)out_.rules_.size() - 1;
    }

    std::string read_name() {
        const size_t begin = pos_;
        while (is_name_char(peek())) ++pos_;
        if (pos_ == begin) wrong("a rule's name");
        return text_.substr(begin, pos_ - begin);
    }

    uint32_t read_number() {
        if (!is_digit(peek())) wrong("a number");
        constexpr int64_t most = GrammarLimits::n_repetitions;
        int64_t value = 0;
        const size_t begin = pos_;
        for (; is_digit(peek()); ++pos_) value = std::min(value * 10 + (peek() - '0'), most + 1);
        if (value > most) {
            fail(ErrorKind::grammar, "the grammar: the numbers of a repetition: at most %lld, found %.40s",
                 (long long)most, text_.substr(begin, pos_ - begin).c_str());
        }
        return (uint32_t)value;
    }

    uint32_t read_hex(int n_digits) {
        uint32_t value = 0;
        for (int i = 0; i < n_digits; ++i, ++pos_) {
            const char c = peek();
            const int digit = is_digit(c)            ? c - '0'
                              : 'a' <= c && c <= 'f' ? c - 'a' + 10
                              : 'A' <= c && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) wrong("a hexadecimal digit");
            value = value << 4 | (uint32_t)digit;
        }
        return value;
    }

    uint32_t read_char() {
        if (pos_ >= text_.size()) wrong("a character");
        const unsigned char first = (unsigned char)text_[pos_++];
        if (first == '\\') {
            const char c = peek();
            ++pos_;
            switch (c) {
                case 'x':
                    return read_hex(2);
                case 'u':
                    return read_hex(4);
                case 'U':
                    return read_hex(8);
                case 't':
                    return '\t';
                case 'r':
                    return '\r';
                case 'n':
                    return '\n';
                case '\\':
                case '"':
                case '[':
                case ']':
                case '-':
                    return (unsigned char)c;
            }
            --pos_;
            wrong("x, u, U, t, r, n, \\, \", [, ] or - behind a backslash");
        }
        const int n_more = first < 0xC0 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        uint32_t value = n_more == 0 ? first : first & ((1u << (6 - n_more)) - 1);
        for (int i = 0; i < n_more && ((unsigned char)peek() & 0xC0) == 0x80; ++i, ++pos_) {
            value = value << 6 | ((unsigned char)peek() & 0x3F);
        }
        return value;
    }

    void read_rule() {
        const uint32_t rule = rule_number(read_name());
        skip_space(false);
        if (text_.compare(pos_, 3, "::=") != 0) wrong("::=");
        pos_ += 3;
        skip_space(true);
        open_group(rule);
        while (!groups_.empty()) read_item();
    }

    void open_group(uint32_t rule) { groups_.push_back({rule, open_.size(), open_.size()}); }

    void close_group() {
        const Group group = groups_.back();
        groups_.pop_back();
        write_rule(group.rule, group.begin);
        if (groups_.empty()) {
            if (pos_ < text_.size() && peek() != '\n' && peek() != '\r') wrong("an element or the end of the line");
            skip_space(true);
            return;
        }
        if (peek() != ')') wrong("an element or )");
        ++pos_;
        add({Type::rule, group.rule});
        skip_space(is_nested());
    }

    bool is_nested() const { return groups_.size() > 1; }

    // what lies on top of open_ becomes the rule
    void write_rule(uint32_t rule, size_t begin) {
        Grammar::Rule & r = out_.rules_[rule];
        r.begin = (uint32_t)out_.elements_.size();
        out_.elements_.insert(out_.elements_.end(), open_.begin() + (long)begin, open_.end());
        out_.elements_.push_back({Type::end});
        r.end = (uint32_t)out_.elements_.size();
        open_.resize(begin);
    }

    void add(const Element & e) {
        groups_.back().last = open_.size();
        open_.push_back(e);
    }

    void read_item() {
        const char c = peek();
        if (c == '"') {
            ++pos_;
            groups_.back().last = open_.size();
            while (peek() != '"') open_.push_back({Type::chr, read_char()});
            ++pos_;
        } else if (c == '[') {
            read_set();
        } else if (c == '<' || c == '!') {
            wrong("an element (a token is asked for by its text, in quotes)");
        } else if (c == '.') {
            ++pos_;
            out_.sets_.push_back({0, 0});
            add({Type::not_set, (uint32_t)out_.sets_.size() - 1});
        } else if (is_name_char(c)) {
            add({Type::rule, rule_number(read_name())});
        } else if (c == '(') {
            ++pos_;
            open_group(add_rule());
            skip_space(true);
            return;
        } else if (c == '|') {
            ++pos_;
            open_.push_back({Type::end});
            groups_.back().last = open_.size();
            skip_space(true);
            return;
        } else if (c == '*' || c == '+' || c == '?') {
            ++pos_;
            repeat(c == '+', c == '?' ? 1 : Grammar::unlimited);
        } else if (c == '{') {
            read_repetitions();
        } else {
            return close_group();
        }
        skip_space(is_nested());
    }

    void read_set() {
        const size_t begin = out_.ranges_.size(), at = pos_++;
        const bool is_not = peek() == '^';
        if (is_not) ++pos_;
        while (peek() != ']') {
            const uint32_t low = read_char();
            uint32_t high = low;
            if (peek() == '-' && peek(1) != ']') {
                ++pos_;
                high = read_char();
            }
            out_.ranges_.push_back({low, high});
        }
        if (out_.ranges_.size() == begin) {
            pos_ = at;
            wrong("a class with at least one character");
        }
        ++pos_;
        merge_ranges(begin);
        if (!is_not && out_.ranges_.size() == begin + 1 && out_.ranges_.back().first == out_.ranges_.back().second) {
            const uint32_t c = out_.ranges_.back().first;
            out_.ranges_.pop_back();
            return add({Type::chr, c});
        }
        out_.sets_.push_back({(uint32_t)begin, (uint32_t)out_.ranges_.size()});
        add({is_not ? Type::not_set : Type::set, (uint32_t)out_.sets_.size() - 1});
    }

    // those of a set, so that they can be searched
    void merge_ranges(size_t begin) {
        std::vector<Grammar::Range> & all = out_.ranges_;
        std::sort(all.begin() + (long)begin, all.end());
        size_t n = begin;
        for (size_t i = begin; i < all.size(); ++i) {
            if (all[i].first > all[i].second) continue;  // [z-a] holds nothing
            if (n > begin && all[i].first <= all[n - 1].second) {
                all[n - 1].second = std::max(all[n - 1].second, all[i].second);
            } else {
                all[n++] = all[i];
            }
        }
        all.resize(n);
    }

    void read_repetitions() {
        ++pos_;
        skip_space(is_nested());
        const uint32_t min = read_number();
        uint32_t max = min;
        skip_space(is_nested());
        if (peek() == ',') {
            ++pos_;
            skip_space(is_nested());
            max = is_digit(peek()) ? read_number() : Grammar::unlimited;
            skip_space(is_nested());
        }
        if (peek() != '}') wrong("}");
        ++pos_;
        if (max < min) {
            fail(ErrorKind::grammar, "the grammar: the repetition {%u,%u} asks for at least %u and at most %u", min,
                 max, min, max);
        }
        repeat(min, max);
    }

    void repeat(uint32_t min, uint32_t max) {
        const size_t last = groups_.back().last;
        if (last == open_.size()) wrong("something to repeat before *, +, ? or {");
        if (max == 0) return open_.resize(last);
        uint32_t rule = open_.back().value;
        if (open_.size() == last + 1 && open_.back().type == Type::rule) {
            open_.pop_back();
        } else {
            rule = add_rule();
            write_rule(rule, last);
        }
        open_.push_back({Type::repeat, rule, min, max});
    }

    Grammar & out_;
    const std::string & text_;
    size_t pos_ = 0;
    std::map<std::string, uint32_t> numbers_;  // no hash: the names are untrusted
    std::vector<Group> groups_;
    std::vector<Element> open_;  // of all open groups
};

Grammar::Grammar(const std::string & text) {
    if ((int64_t)text.size() > GrammarLimits::n_text_bytes) {
        fail(ErrorKind::grammar, "a grammar has at most %lld bytes, found %zu", (long long)GrammarLimits::n_text_bytes,
             text.size());
    }
    const std::vector<std::string> names = GrammarReader(*this, text).read();
    find_classes();
    find_empty_rules();
    sort_rules(names);
}

// As in llama.cpp, a range that reaches into a negated set does not fit.
bool Grammar::fits_any(const Element & e, uint32_t low, uint32_t high) const {
    if (e.type == Type::chr) return low <= e.value && e.value <= high;
    const auto begin = ranges_.begin() + sets_[e.value].first, end = ranges_.begin() + sets_[e.value].second;
    const auto behind =
        std::upper_bound(begin, end, high, [](uint32_t value, const Range & r) { return value < r.first; });
    const bool is_in = behind != begin && low <= std::prev(behind)->second;
    return is_in == (e.type == Type::set);
}

void Grammar::find_classes() {
    for (const Range & r : ranges_) borders_.push_back(r.first), borders_.push_back(r.second + 1);
    for (const Element & e : elements_) {
        if (e.type == Type::chr) borders_.push_back(e.value), borders_.push_back(e.value + 1);
    }
    std::sort(borders_.begin(), borders_.end());
    borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
    for (uint32_t c = 0; c < 128; ++c) ascii_[c] = find_class(c);
}

uint32_t Grammar::find_class(uint32_t c) const {
    return (uint32_t)(std::upper_bound(borders_.begin(), borders_.end(), c) - borders_.begin());
}

// A rule may be empty if one of its alternatives holds nothing but repetitions from 0 and rules that may be empty.
void Grammar::find_empty_rules() {
    std::vector<std::vector<uint32_t>> used_in(rules_.size());  // alternatives, by the rules they wait for
    std::vector<std::pair<uint32_t, uint32_t>> alternatives;    // rule, elements that must become empty
    std::vector<uint32_t> found;
    const auto note = [&](uint32_t rule) {
        if (!rules_[rule].may_be_empty) rules_[rule].may_be_empty = true, found.push_back(rule);
    };
    for (uint32_t rule = 0; rule < rules_.size(); ++rule) {
        alternatives.push_back({rule, 0});
        for (uint32_t slot = rules_[rule].begin; slot < rules_[rule].end; ++slot) {
            const Element & e = elements_[slot];
            if (e.type == Type::end) {
                if (alternatives.back().second == 0) note(rule);
                alternatives.push_back({rule, 0});
                continue;
            }
            if (e.type == Type::repeat && e.min == 0) continue;
            ++alternatives.back().second;
            const bool can_be = e.type == Type::rule || e.type == Type::repeat;
            if (can_be) used_in[e.value].push_back((uint32_t)alternatives.size() - 1);
        }
    }
    while (!found.empty()) {
        const uint32_t rule = found.back();
        found.pop_back();
        for (uint32_t a : used_in[rule]) {
            if (--alternatives[a].second == 0) note(alternatives[a].first);
        }
    }
}

// Orders the rules by which may begin with which (Kahn's algorithm); what is left over begins with itself.
void Grammar::sort_rules(const std::vector<std::string> & names) {
    const auto each_first = [&](uint32_t rule, auto && f) {
        bool is_first = true;
        for (uint32_t slot = rules_[rule].begin; slot < rules_[rule].end; ++slot) {
            const Element & e = elements_[slot];
            const bool has_rule = e.type == Type::rule || e.type == Type::repeat;
            if (is_first && has_rule) f(e.value);
            if (e.type == Type::end) {
                is_first = true;
            } else if (!(has_rule && (rules_[e.value].may_be_empty || (e.type == Type::repeat && e.min == 0)))) {
                is_first = false;
            }
        }
    };
    std::vector<uint32_t> n_before(rules_.size(), 0), ready, order(rules_.size());
    for (uint32_t r = 0; r < rules_.size(); ++r) each_first(r, [&](uint32_t other) { ++n_before[other]; });
    for (uint32_t r = 0; r < rules_.size(); ++r) {
        if (n_before[r] == 0) ready.push_back(r);
    }
    std::vector<Rule> sorted;
    while (!ready.empty()) {
        const uint32_t r = ready.back();
        ready.pop_back();
        order[r] = (uint32_t)sorted.size();
        sorted.push_back(rules_[r]);
        each_first(r, [&](uint32_t other) {
            if (--n_before[other] == 0) ready.push_back(other);
        });
    }
    for (size_t r = 0; r < rules_.size() && sorted.size() < rules_.size(); ++r) {
        if (n_before[r] == 0 || names[r].empty()) continue;
        fail(ErrorKind::grammar,
             "the grammar: rule '%.60s' can begin with itself (left recursion), or one that does can begin with it; "
             "use * or + to repeat, or put something before the repetition",
             names[r].c_str());
    }
    rules_ = std::move(sorted);
    for (Element & e : elements_) {
        if (e.type == Type::rule || e.type == Type::repeat) e.value = order[e.value];
    }
}

}  // namespace eaglecpp
