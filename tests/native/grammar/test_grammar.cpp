// SPDX-License-Identifier: MIT
// Grammars: what may follow a text, how hostile ones are refused, and what they cost at most.
#include <chrono>
#include <memory>

#include "../algo/random.h"
#include "../check.h"
#include "base/error.h"
#include "grammar/matcher.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

// Single bytes, and some words and ends of characters.
const std::vector<std::string> & vocabulary() {
    static const std::vector<std::string> all = [] {
        std::vector<std::string> out;
        for (int byte = 0; byte < 256; ++byte) out.push_back(std::string(1, (char)byte));
        for (const char * piece : {"aa", "aaaa", "ab", "abc", "\"a\"", "é", "éa", "日本", "a日", "\xE6\x97", "\xA5",
                                   "()", "((", "{\"", "\":", "true", "<t>", ""}) {
            out.push_back(piece);
        }
        out.push_back("<end>");
        return out;
    }();
    return all;
}

const Token end_token = (Token)vocabulary().size() - 1;

GrammarMatcher matcher(const std::string & text) {
    static const auto pieces = [] {
        std::vector<bool> is_end(vocabulary().size(), false);
        is_end[end_token] = true;
        return std::make_shared<TokenPieces>(vocabulary(), is_end);
    }();
    return GrammarMatcher(std::make_shared<Grammar>(text), pieces);
}

// the text as single bytes
Tokens bytes(const std::string & text) {
    Tokens out;
    for (char c : text) out.push_back((unsigned char)c);
    return out;
}

// The mask is what asking for each token says, on random texts; that both are right, tests/parity/test_grammar.py
// shows.
TEST(masks_agree_with_single_questions) {
    const char * const all[] = {
        "root ::= v\nv ::= \"{\" (s \":\" v (\",\" s \":\" v)*)? \"}\" | \"[\" (v (\",\" v)*)? \"]\" | s | \"true\"\n"
        "s ::= \"\\\"\" [^\"\\\\]* \"\\\"\"",
        "root ::= (\"a\" | \"aa\" | \"ab\"){2,9} [日-本é]*",
        "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"(\" s | \"\"",
        "root ::= (x? x? x? x?)+\nx ::= [a-c] | \"()\"",
    };
    Random random(3);
    for (const char * text : all) {
        for (int repeat = 0; repeat < 20; ++repeat) {
            GrammarMatcher m = matcher(text);
            for (int n = 0; n < 30; ++n) {
                const std::vector<bool> mask = m.allowed();
                Tokens may;
                for (Token token = 0; token < (Token)mask.size(); ++token) {
                    CHECK_MSG(mask[token] == m.allows(token), strf("%s: token %d behind %d", text, token, n));
                    if (mask[token] && token != end_token) may.push_back(token);
                }
                for (Token token : {'a', 'z'}) {
                    if (!mask[token]) CHECK_THROWS(m.accept(token), "does not fit the grammar");
                }
                if (may.empty()) break;
                Tokens path = {may[random.integer(0, (int)may.size() - 1)]};
                const std::vector<bool> ahead = m.allows_behind(path, bytes("abc()\"日"));
                m.accept(path[0]);
                for (size_t i = 0; i < ahead.size(); ++i) CHECK(ahead[i] == m.allows(bytes("abc()\"日")[i]));
            }
        }
    }
}

TEST(what_is_wrong_is_said_with_its_place) {
    CHECK_THROWS(Grammar("root ::= (\"a\"\n"), "line 2, column 1: expected an element or ), found the end");
    CHECK_THROWS(Grammar("root ::= \"a\" )"),
                 "line 1, column 14: expected an element or the end of the line, found ')'");
    CHECK_THROWS(Grammar("root ::= \"a\nb"), "expected a character, found the end");
    CHECK_THROWS(Grammar("root ::= \"\\q\""), "behind a backslash, found 'q\"'");
    CHECK_THROWS(Grammar("root ::= *"), "something to repeat");
    CHECK_THROWS(Grammar("root ::= []"), "at least one character");
    CHECK_THROWS(Grammar("root = \"a\""), "expected ::=, found '= \"a\"'");
    CHECK_THROWS(Grammar("x ::= \"a\""), "no rule 'root'");
    CHECK_THROWS(Grammar("root ::= none"), "a rule 'none' and does not define it");
    CHECK_THROWS(Grammar("root ::= \"a\"{5,2}"), "{5,2} asks for at least 5 and at most 2");
    CHECK_THROWS(Grammar("root ::= \"a\"{99999999999999999999}"), "at most 1000000000, found 99999999999999999999");
    CHECK_THROWS(Grammar("root ::= <[3]>"), "a token is asked for by its text");
    CHECK_THROWS(Grammar("root ::= \"a\" !<t>"), "a token is asked for by its text");
    CHECK_THROWS(Grammar("root ::= root \"a\" | \"b\""), "rule 'root' can begin with itself");
    CHECK_THROWS(Grammar("root ::= b\nb ::= c* root\nc ::= \"c\""), "can begin with itself");
    CHECK_THROWS(Grammar("root ::= (\"a\"? root)* \"b\""), "can begin with itself");
    CHECK_THROWS(Grammar("root ::= \"" + std::string(1 << 20, 'a') + "\""), "at most 1048576 bytes, found");
}

std::string repeated(const std::string & piece, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += piece;
    return out;
}

// Feeds what is allowed, a's or anything, and says why it ended: "" = n tokens were read.
std::string endure(const std::string & text, int n, bool any = true, size_t * most_frames = nullptr) {
    try {
        GrammarMatcher m = matcher(text);
        Random random(5);
        for (int i = 0; i < n; ++i) {
            if (most_frames) *most_frames = std::max(*most_frames, m.n_frames());
            if (!any && m.allows('a')) {
                m.accept('a');
                continue;
            }
            const std::vector<bool> & mask = m.allowed();
            Tokens may;
            for (Token token = 1; token < (Token)mask.size(); ++token) {
                if (mask[token] && token != end_token) may.push_back(token);
            }
            if (may.empty()) return "nothing allowed";
            m.accept(may[random.integer(0, (int)may.size() - 1)]);
        }
    } catch (const Error & e) {
        return e.kind == ErrorKind::grammar ? e.what() : std::string("another kind: ") + e.what();
    }
    return "";
}

// What killed the process or held it for minutes with llama.cpp's parser and sampler. No time is measured: steps are
// counted, and ctest has a limit of its own.
TEST(hostile_grammars_cost_little_or_end) {
    const int n = 100000;
    CHECK(endure("root ::= " + repeated("(", n) + "\"a\"" + repeated(")", n), 1) == "");
    std::string chain = "root ::= r0\n";
    for (int i = 0; i < 50000; ++i) chain += strf("r%d ::= r%d\n", i, i + 1);
    CHECK(endure(chain + "r50000 ::= \"a\"", 1) == "");
    CHECK(endure("root ::= " + repeated("(", n) + "\"a\"" + repeated(")?", n), 1) == "");
    CHECK(endure("root ::= \"a\"{1000000000}", 2000) == "");
    CHECK(endure("root ::= (((\"a\"{1000000}){1000000}){1000000}){1000000}", 2000) == "");
    CHECK(endure("root ::= \"a\"" + repeated("*", n / 5), 300) == "");
    std::string alternatives = "root ::= (x0";
    for (int i = 1; i < 200; ++i) alternatives += strf(" | x%d", i);
    alternatives += ")*\n";
    for (int i = 0; i < 200; ++i) alternatives += strf("x%d ::= \"a\" \"a\"*\n", i);
    CHECK(endure(alternatives, 300) == "");
    // two ways to go on behind each character: 2^n stacks in llama.cpp
    CHECK(endure("root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\"", 2000, false) == "");
    CHECK(endure("root ::= " + repeated("\"a\"? ", 1000), 100) == "");
    // each character doubles what one rule stands for
    std::string doubling;
    for (int i = 0; i < 40; ++i) doubling += strf("r%d ::= r%d r%d\n", i, i + 1, i + 1);
    CHECK(endure("root ::= r0\n" + doubling + "r40 ::= \"a\"?", 300) == "");
    // as ambiguous as can be: cubic, and ended
    const std::string worst = endure("root ::= s\ns ::= \"a\" | \"a\" s | \"a\" s s | \"a\" s s s", 20000, false);
    CHECK_MSG(worst.find("too ambiguous or too large here: one token may take 2000000 steps") != std::string::npos,
              worst);
    const std::string counting = endure("root ::= ((\"a\" | \"aa\"){1,100000} | \"a\"){1,100000}", 20000, false);
    CHECK_MSG(counting.find("too ambiguous") != std::string::npos, counting);
    CHECK(endure("root ::= \"a\" none\nnone ::= [z-a]", 5) == "nothing allowed");
    CHECK(endure("root ::= x\nx ::= \"a\" x", 2000) == "");
}

TEST(long_texts_need_no_more_memory) {
    size_t most = 0;
    CHECK(endure("root ::= \"\\\"\" ([^\"\\\\] | \"\\\\\" [\"n])* \"\\\"\" | [^\"]+", 20000, true, &most) == "");
    CHECK_MSG(most < 100, strf("%zu frames", most));
    // one that counts makes a new state for each character, and what is gone goes
    most = 0;
    CHECK(endure("root ::= [ab]{100000000}", 300000, false, &most) == "");
    CHECK_MSG(most <= (size_t)GrammarLimits::n_frames, strf("%zu frames", most));
    // one that remembers them all
    const std::string deep = endure("root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\" s \"d\"", 400000, false);
    CHECK_MSG(deep.find("remembers too much") != std::string::npos, deep);
}

// Damaged grammars are read or refused, and what is read can be followed.
TEST(any_text_is_read_or_refused) {
    const std::vector<std::string> seeds = {
        "root ::= (\"a\" | x{2,3} [^b-d\\u00e9]*)+ # note\nx ::= . \"\\x41\"?\n",
        "root ::= s\ns ::= \"(\" s \")\" s | \"\"\nz ::= [\\]\\-a] ( s ( s )? ){0,}\r\n",
        "root ::= \"日本\"{1,4} | ([ぁ-ゟ] | \"é\")*\n",
    };
    const std::string pieces = "()[]{}|*+?.\"\\^-<>!#:=\n ,019axrsuUt\xE6\xFF\x80";
    Random random(11);
    int n_read = 0;
    for (int i = 0; i < 2000; ++i) {
        std::string text = seeds[random.integer(0, (int)seeds.size() - 1)];
        for (int n = random.integer(1, 4); n > 0; --n) {
            const size_t at = (size_t)random.integer(0, (int)text.size() - 1);
            const size_t size = std::min<size_t>((size_t)random.integer(1, 8), text.size() - at);
            switch (random.integer(0, 3)) {
                case 0:
                    text[at] = pieces[random.integer(0, (int)pieces.size() - 1)];
                    break;
                case 1:
                    text.insert(at, 1, pieces[random.integer(0, (int)pieces.size() - 1)]);
                    break;
                case 2:
                    text.insert((size_t)random.integer(0, (int)text.size()), text.substr(at, size));
                    break;
                default:
                    text.erase(at, text.size() > size ? size : 0);
            }
        }
        const std::string why = endure(text, 8);
        CHECK_MSG(why.find("another kind") == std::string::npos, why + ": " + text);
        n_read += why.empty();
    }
    CHECK_MSG(n_read > 100 && n_read < 1900, strf("%d", n_read));
}

// What a draft asks must not change what the text may say, nor use up its steps.
TEST(drafts_have_steps_of_their_own) {
    GrammarMatcher m = matcher("root ::= s\ns ::= \"a\" | \"a\" s | \"a\" s s | \"a\" s s s");
    Tokens long_path(5000, 'a');
    CHECK(m.allows_behind(long_path, {'a'}) == std::vector<bool>{false});
    for (int i = 0; i < 50; ++i) {
        CHECK(m.allows('a') && !m.allows('b'));
        m.accept('a');
    }
    CHECK(m.allows_behind({'a', 'a'}, {'a', 'b'}) == (std::vector<bool>{true, false}));
}

}  // namespace
