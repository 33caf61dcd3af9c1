// SPDX-License-Identifier: MIT
// Drafts from the text itself.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace eaglecpp {

// --- suffix automaton -----------------------------------------------------------------------------------------------

// The suffix automaton of a growing text (Blumer et al., 1985): after each token it knows the longest suffix that stood
// in the text before, exactly and in amortised constant time. A text of n tokens has at most 2n states and 3n
// transitions; nothing else is kept.
class SuffixAutomaton {
  public:
    // A suffix that occurred before: its length and where it ended, the index of its last token.
    struct Match {
        int length = 0;
        int end = -1;
    };

    SuffixAutomaton() { clear(); }

    void clear();

    // tokens so far
    int size() const { return n_; }

    void add(Token token);

    // The longest suffix of the text that also ends earlier in it, with the latest such place that is known; length 0
    // if there is none.
    Match longest() const { return match_; }

    // bytes held
    size_t n_bytes() const;

  private:
    static constexpr int32_t none = -1;

    struct State {
        int32_t length = 0;
        int32_t link = none;
        int32_t end = none;   // index of the last token of an occurrence, the latest that is known
        int32_t edge = none;  // first of its transitions
    };

    struct Edge {
        int32_t from, to, next;
        Token token;
    };

    int32_t add_state(int32_t length, int32_t link, int32_t end);
    int32_t find(int32_t from, Token token) const;
    void add_edge(int32_t from, Token token, int32_t to);
    size_t slot_of(int32_t from, Token token) const;
    void grow_slots();
    int32_t split(int32_t p, Token token, int32_t q);

    int n_ = 0;
    int32_t last_ = 0;
    Match match_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> slots_;  // open addressing: edge numbers by (from, token)
};

// --- text index -----------------------------------------------------------------------------------------------------

// Drafts from the text itself: what followed the last time the text read as it does now. One index per conversation,
// over prompt and answer and, if wanted, over what the conversation held before. Where a copy breaks off (a name was
// changed, a line put in), the place is remembered, and the first token that fits in there takes the copy up again.

// What the text proposes after its last token, as a tree whose root that token is. Nodes have the numbers that they
// will have in the pool (algo/tree.h): the root is 0, parents come before their children.
struct TextDraft {
    enum class Source : uint8_t {
        longest,  // what followed the longest suffix that stood there before
        resumed,  // what follows the place where a copy broke off
    };

    struct Node {
        Token token;
        int32_t parent, depth;
        int32_t n_match;  // tokens of text, and of draft before it, that agree with the place it is taken from
        Source source;
    };

    std::vector<Node> nodes{{-1, -1, 0, 0, Source::longest}};

    int size() const { return (int)nodes.size(); }
    bool empty() const { return size() == 1; }
    void clear() { nodes.resize(1); }

    // returns the node's number
    int add(Token token, int32_t parent, int32_t n_match, Source source) {
        nodes.push_back({token, parent, nodes[parent].depth + 1, n_match, source});
        return size() - 1;
    }

    // Drops what `keeps(node)` does not want, with all that follows it. It is asked in order; the node's parent is one
    // of those that were kept, by its new number.
    template <typename Keeps>
    void filter(Keeps && keeps) {
        std::vector<int32_t> moved(size(), -1);
        moved[0] = 0;
        int n = 1;
        for (int i = 1; i < size(); ++i) {
            Node node = nodes[i];
            node.parent = moved[node.parent];
            if (node.parent < 0 || !keeps(node)) continue;
            nodes[n] = node;
            moved[i] = n++;
        }
        nodes.resize(n);
    }
};

class TextIndex {
  public:
    // `n_memory`: tokens of earlier texts that are kept in addition to the current one. A text longer than `n_most`
    // tokens loses its beginning, half of `n_most` at a time.
    explicit TextIndex(int n_memory = 0, int n_most = 1 << 17);

    // The text is now `text`. If it continues the last one, only what is new is read; any other text is read from the
    // beginning.
    void assign(const Tokens & text);

    // the text goes on
    void add(Token token);

    // nothing is kept
    void clear();

    // Proposes up to `n_nodes` nodes, none deeper than `depth`; one chain unless `is_tree`.
    const TextDraft & propose(int n_nodes, int depth, bool is_tree);

    // tokens indexed, those of earlier texts included
    int size() const { return (int)all_.size(); }

    size_t n_bytes() const { return automaton_.n_bytes() + (all_.capacity() + text_.capacity()) * sizeof(Token); }

  private:
    void index(Token token);
    void index_all(const Tokens & before, const Tokens & text);
    void follow(Token token);
    void find_resumption();
    int n_agreeing(int end) const;
    void add_chain(int from, int n_match, TextDraft::Source source, int n_nodes, int depth);

    int n_memory_, n_most_;
    SuffixAutomaton automaton_;
    Tokens all_;   // what is indexed: earlier texts, each after a border, then the text or its end
    Tokens text_;  // the whole text

    // the copy under way
    int source_ = -1;   // index of the token it expects next; -1 = there is none
    int n_missed_ = 0;  // tokens since it broke off
    int resumed_ = -1;  // index of the token that goes on with it or takes it up again; -1 = no place fits

    TextDraft draft_;
};

}  // namespace eaglecpp
