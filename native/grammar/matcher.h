// SPDX-License-Identifier: MIT
// Which tokens may follow the text so far, by a grammar.
//
// What may follow is a set of frames: a slot of the grammar, how often the repetition there has been met, and the set
// of frames at which to go on when the rule is over. Equal sets are kept once, so all ways to read a text that come to
// the same are one state, and a state has seen each class of characters once at most: a lazily built automaton. All who
// call a rule at one place in the text share one set to go on with, so the number of sets grows with the text and never
// with the number of ways to read it (the graph-structured stacks of generalised LR parsers). A rule's last element
// leaves nothing to come back to, so that repetitions by recursion do not grow a stack.
//
// A token may take GrammarLimits::n_steps steps; a text, n_steps and n_steps_back for each token: Error(grammar) then.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/types.h"
#include "grammar/grammar.h"

namespace eaglecpp {

// The texts of a vocabulary's tokens, sorted, so that tokens that begin alike are looked at together.
class TokenPieces {
  public:
    // pieces: bytes of each token, as far as the first NUL; is_end: those that end a text, which have no piece
    TokenPieces(const std::vector<std::string> & pieces, std::vector<bool> is_end);

    int size() const { return (int)is_end_.size(); }
    bool is_end(Token token) const { return is_end_[token]; }
    std::string_view piece(Token token) const {
        return std::string_view(bytes_).substr(begin_[token], begin_[token + 1] - begin_[token]);
    }
    size_t n_longest() const { return n_longest_; }

    // tokens with a piece, sorted by it, and how many bytes each has in common with the one before
    const Tokens & sorted() const { return sorted_; }
    const std::vector<uint32_t> & n_common() const { return n_common_; }
    const Tokens & ends() const { return ends_; }

  private:
    std::string bytes_;
    std::vector<uint32_t> begin_;
    std::vector<bool> is_end_;
    Tokens sorted_, ends_;
    std::vector<uint32_t> n_common_;
    size_t n_longest_ = 0;
};

class GrammarMatcher {
  public:
    // A set of frames, and the part of a character that is not over yet: its bits, and the bytes that it lacks.
    struct State {
        uint32_t set = 0;  // 0: the empty one, nothing fits
        uint32_t bits = 0, n_lacking = 0;
    };

    GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenPieces> pieces);

    bool allows(Token token) { return after(now_, token).set != 0; }

    // By token id; valid until the next call of anything here.
    const std::vector<bool> & allowed();

    // Adds a token to the text; Error(grammar) also when it is not allowed.
    void accept(Token token);

    // For each of `tokens`: may it follow the text and then `path`? All false where `path` itself may not, and where
    // the answer takes too many steps: these are not the text's, but n_steps_back for each token of the text.
    std::vector<bool> allows_behind(const Tokens & path, const Tokens & tokens);

    // sets and frames that are kept
    size_t n_frames() const { return frames_.size(); }

  private:
    struct Frame {
        uint32_t slot, count, next;
        bool operator==(const Frame & o) const { return slot == o.slot && count == o.count && next == o.next; }
    };
    struct Set {
        uint32_t begin, size;  // in frames_
    };
    using Element = Grammar::Element;
    struct Hash {
        size_t operator()(const Frame & f) const;
    };

    void take_steps(size_t n);
    uint64_t order_of(const Frame & f) const;
    uint32_t keep(std::vector<Frame> & frames);
    uint32_t close();
    void call(const Element & e, const Frame & f);
    uint32_t move(uint32_t set, uint32_t c);
    State step(State state, unsigned char byte);
    bool may_stop(const State & state);
    bool ends(const State & state) const;
    State after(const State & from, Token token);
    void collect_garbage();

    std::shared_ptr<const Grammar> grammar_;
    std::shared_ptr<const TokenPieces> pieces_;
    // Sets are numbered in the order in which they came, so their frames go on at sets of smaller numbers. Frames are
    // sorted: single characters by code point, then all else.
    std::vector<Frame> frames_;
    std::vector<Set> sets_;
    std::unordered_multimap<uint64_t, uint32_t> set_of_;          // by hash
    std::unordered_map<uint64_t, uint32_t> moves_;                // by set and class of the character
    std::unordered_map<uint32_t, std::vector<bool>> allowed_in_;  // of some sets
    std::vector<bool> allowed_;
    State now_;
    int64_t n_steps_left_ = GrammarLimits::n_steps, n_draft_steps_left_ = GrammarLimits::n_steps_back;
    // for close(), kept to save allocations
    std::vector<Frame> todo_, items_;
    std::unordered_set<Frame, Hash> seen_;
    std::vector<std::vector<Frame>> calls_;  // by rule: where to go on
    std::vector<uint32_t> called_;           // a heap, the first rule on top
};

}  // namespace eaglecpp
