// SPDX-License-Identifier: MIT
// A grammar in GBNF, llama.cpp's format (its grammars/README.md), read into a table. Reading takes time and memory in
// proportion to the text, whatever it says: nothing recurses, and repetitions are counted instead of written out.
//
// Differences from llama.cpp's own parser: {m,n} holds for any n (there, above 2000 means "no limit") and must not have
// n < m; left recursion behind rules that may be empty is found, too; single tokens (<[12]>, !<think>) are refused: a
// token is asked for by its text, those of a model's own marks as well.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace eaglecpp {

// What a grammar, or the JSON schema that becomes one, may cost: whoever sends it shares the engine with others. Every
// limit there is stands here; errors quote it, and SECURITY.md says what it is for (a test compares them).
struct GrammarLimits {
    static constexpr int64_t n_text_bytes = 1 << 20;      // GBNF
    static constexpr int64_t n_repetitions = 1000000000;  // the numbers in {m,n}; they are counted, never written out
    // Steps of the matcher, some 50 ns each: how many one token may take, and how many are given back by each token.
    static constexpr int64_t n_steps = 2000000;
    static constexpr int64_t n_steps_back = 200000;
    static constexpr int64_t n_frames = 1000000;  // 12 bytes each, of all states that are kept

    static constexpr int64_t n_schema_bytes = 1 << 20;  // of JSON text
    static constexpr int64_t n_schema_depth = 64;       // of schemas in schemas, and of groups in a pattern
    static constexpr int64_t n_schema_nodes = 10000;    // schemas; the values of an enum are none
};

class Grammar {
  public:
    enum class Type : uint8_t { end, accept, chr, set, not_set, rule, repeat };

    // One place in the table. end: of an alternative; accept: of the whole text.
    // value: code point | number of the set | rule
    struct Element {
        Type type;
        uint32_t value = 0;
        uint32_t min = 0, max = 0;  // of a repeat; unlimited = no most
    };
    static constexpr uint32_t unlimited = UINT32_MAX;
    static constexpr uint32_t start = 0;  // the slot of the root, before `accept`

    struct Rule {
        uint32_t begin = 0, end = 0;  // slots: the alternatives, each closed by `end`
        bool may_be_empty = false;
    };

    // Error(grammar): what is wrong and where
    explicit Grammar(const std::string & text);

    const Element & at(uint32_t slot) const { return elements_[slot]; }
    // Rules are numbered so that one that begins with another (perhaps behind what may be empty) comes before it.
    const Rule & rule(uint32_t number) const { return rules_[number]; }
    size_t n_rules() const { return rules_.size(); }

    // chr, set and not_set: whether some code point of [low, high] fits
    bool fits_any(const Element & e, uint32_t low, uint32_t high) const;

    // code points of one class fit the same elements
    uint32_t class_of(uint32_t c) const { return c < 128 ? ascii_[c] : find_class(c); }

  private:
    friend class GrammarReader;
    using Range = std::pair<uint32_t, uint32_t>;  // both included

    uint32_t find_class(uint32_t c) const;
    void find_classes();
    void find_empty_rules();
    void sort_rules(const std::vector<std::string> & names);

    std::vector<Element> elements_;
    std::vector<Rule> rules_;
    std::vector<Range> ranges_;
    std::vector<std::pair<uint32_t, uint32_t>> sets_;  // begin and end in ranges_
    std::vector<uint32_t> borders_;                    // first code points of the classes but the first
    uint32_t ascii_[128];
};

}  // namespace eaglecpp
