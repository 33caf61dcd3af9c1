// SPDX-License-Identifier: MIT
#include "algo/text.h"

#include <algorithm>

namespace eaglecpp {

// --- suffix automaton -----------------------------------------------------------------------------------------------

namespace {
constexpr size_t n_slots_least = 64;

size_t hash_of(int32_t from, Token token) {
    uint64_t z = ((uint64_t)(uint32_t)from << 32 | (uint32_t)token) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93ull;
    return (size_t)(z ^ (z >> 32));
}
}  // namespace

void SuffixAutomaton::clear() {
    n_ = 0;
    last_ = 0;
    match_ = {};
    states_.assign(1, {});
    edges_.clear();
    slots_.assign(n_slots_least, none);
}

int32_t SuffixAutomaton::add_state(int32_t length, int32_t link, int32_t end) {
    states_.push_back({length, link, end, none});
    return (int32_t)states_.size() - 1;
}

// where the transition is, or where it would be put
size_t SuffixAutomaton::slot_of(int32_t from, Token token) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash_of(from, token) & mask;
    while (slots_[slot] != none && (edges_[slots_[slot]].from != from || edges_[slots_[slot]].token != token)) {
        slot = (slot + 1) & mask;
    }
    return slot;
}

int32_t SuffixAutomaton::find(int32_t from, Token token) const {
    return slots_[slot_of(from, token)];
}

void SuffixAutomaton::grow_slots() {
    slots_.assign(2 * slots_.size(), none);
    for (int32_t e = 0; e < (int32_t)edges_.size(); ++e) slots_[slot_of(edges_[e].from, edges_[e].token)] = e;
}

void SuffixAutomaton::add_edge(int32_t from, Token token, int32_t to) {
    if (2 * (edges_.size() + 1) > slots_.size()) grow_slots();
    slots_[slot_of(from, token)] = (int32_t)edges_.size();
    edges_.push_back({from, to, states_[from].edge, token});
    states_[from].edge = (int32_t)edges_.size() - 1;
}

// The strings of q that are one token longer than p's get a state of their own: they occur where the longer ones do
// not.
int32_t SuffixAutomaton::split(int32_t p, Token token, int32_t q) {
    const int32_t clone = add_state(states_[p].length + 1, states_[q].link, states_[q].end);
    for (int32_t e = states_[q].edge; e != none; e = edges_[e].next) {
        const Edge edge = edges_[e];
        add_edge(clone, edge.token, edge.to);
    }
    for (; p != none; p = states_[p].link) {
        const int32_t e = find(p, token);
        if (e == none || edges_[e].to != q) break;
        edges_[e].to = clone;
    }
    states_[q].link = clone;
    return clone;
}

void SuffixAutomaton::add(Token token) {
    const int32_t state = add_state(n_ + 1, 0, n_);
    int32_t p = last_, e = none;
    for (; p != none && (e = find(p, token)) == none; p = states_[p].link) add_edge(p, token, state);
    int32_t link = 0;
    if (p != none) {
        link = edges_[e].to;
        if (states_[link].length != states_[p].length + 1) link = split(p, token, link);
    }
    states_[state].link = link;
    match_ = {states_[link].length, link == 0 ? none : states_[link].end};
    if (link != 0) states_[link].end = n_;
    last_ = state;
    ++n_;
}

size_t SuffixAutomaton::n_bytes() const {
    return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) + slots_.capacity() * sizeof(int32_t);
}

// --- text index -----------------------------------------------------------------------------------------------------

namespace {
constexpr Token border = -1;    // between texts; no token
constexpr int n_least = 2;      // agreeing tokens: single ones recur everywhere
constexpr int n_surely = 6;     // agreeing tokens that make a copy
constexpr int n_patience = 64;  // tokens that may be put into a copy
constexpr int n_window = 24;    // tokens behind the break among which it may go on
constexpr int n_agreeing_most = 32;
}  // namespace

TextIndex::TextIndex(int n_memory, int n_most) : n_memory_(std::max(0, n_memory)), n_most_(std::max(16, n_most)) {}

void TextIndex::clear() {
    automaton_.clear();
    all_.clear();
    text_.clear();
    source_ = resumed_ = -1;
    n_missed_ = 0;
}

void TextIndex::assign(const Tokens & text) {
    const size_t n_same =
        std::mismatch(text_.begin(), text_.begin() + std::min(text_.size(), text.size()), text.begin()).first -
        text_.begin();
    if (n_same == text_.size()) {
        for (size_t i = n_same; i < text.size(); ++i) add(text[i]);
        return;
    }
    Tokens before;
    if (n_memory_ > 0) {
        // what the text shares with the last one is not kept twice
        const size_t n_before = all_.size() - std::min(all_.size(), text_.size());
        before.assign(all_.begin(), all_.begin() + n_before);
        before.insert(before.end(), text_.begin() + n_same, text_.end());
        before.push_back(border);
        if ((int)before.size() > n_memory_) before.erase(before.begin(), before.end() - n_memory_);
    }
    index_all(before, text);
}

void TextIndex::index_all(const Tokens & before, const Tokens & text) {
    clear();
    text_ = text;
    for (Token token : before) index(token);
    const int n_skipped = std::max(0, (int)(before.size() + text.size()) - n_most_);
    for (size_t i = n_skipped; i < text.size(); ++i) index(text[i]);
}

void TextIndex::add(Token token) {
    text_.push_back(token);
    if ((int)all_.size() < n_most_) return index(token);
    // the older half goes
    const Tokens text = text_, end(all_.end() - n_most_ / 2, all_.end());
    clear();
    text_ = text;
    for (Token one : end) index(one);
    index(token);
}

void TextIndex::index(Token token) {
    follow(token);
    automaton_.add(token);
    all_.push_back(token);
    const SuffixAutomaton::Match match = automaton_.longest();
    if (match.length >= n_surely && (source_ < 0 || n_missed_ > 0)) {
        source_ = match.end + 1;
        n_missed_ = 0;
    }
    find_resumption();
}

// Is the copy still one?
void TextIndex::follow(Token token) {
    if (source_ < 0) return;
    if (resumed_ >= 0 && resumed_ < (int)all_.size() && all_[resumed_] == token) {
        source_ = resumed_ + 1;
        n_missed_ = 0;
    } else if (n_missed_ == 0 && source_ < (int)all_.size() && all_[source_] == token) {
        ++source_;
    } else if (++n_missed_ > n_patience) {
        source_ = -1;
    }
}

// Behind the last token, where that stands near the break.
void TextIndex::find_resumption() {
    resumed_ = -1;
    if (source_ < 0) return;
    const int n = (int)all_.size();
    if (n_missed_ == 0) {
        if (source_ < n) resumed_ = source_;
        return;
    }
    const int end = std::min(source_ + n_window, n - 1);
    int best = -1;
    for (int i = source_; i < end; ++i) {
        if (all_[i] != all_.back()) continue;
        const int n_same = n_agreeing(i);
        if (n_same > best) best = n_same, resumed_ = i + 1;
    }
}

// tokens before and at `end` that agree with the last ones of the text
int TextIndex::n_agreeing(int end) const {
    int n = 0;
    const int last = (int)all_.size() - 1;
    while (n < n_agreeing_most && n <= end && all_[end - n] == all_[last - n]) ++n;
    return n;
}

// Adds what stands from index `from` on; a copy that reaches the end of the text goes on with itself.
void TextIndex::add_chain(int from, int n_match, TextDraft::Source source, int n_nodes, int depth) {
    const int n = (int)all_.size();
    int parent = 0;
    Tokens drafted;
    for (int d = 0; d < depth; ++d) {
        const int at = from + d;
        const Token token = at < n ? all_[at] : drafted[at - n];
        if (token < 0) return;
        drafted.push_back(token);
        int node = -1;
        for (int i = parent + 1; i < draft_.size() && node < 0; ++i) {
            if (draft_.nodes[i].parent == parent && draft_.nodes[i].token == token) node = i;
        }
        if (node < 0 && draft_.size() > n_nodes) return;
        parent = node < 0 ? draft_.add(token, parent, n_match + d, source) : node;
    }
}

const TextDraft & TextIndex::propose(int n_nodes, int depth, bool is_tree) {
    draft_.clear();
    if (n_nodes < 1 || depth < 1) return draft_;
    const SuffixAutomaton::Match match = automaton_.longest();
    const bool has_match = match.length >= n_least;
    const int n_resumed = resumed_ < 0 ? -1 : n_agreeing(resumed_ - 1);
    // a place near the break is better than a somewhat longer match anywhere
    const bool is_resumed_first = n_resumed >= 0 && (!has_match || match.length < n_surely);
    if (is_resumed_first) add_chain(resumed_, n_resumed, TextDraft::Source::resumed, n_nodes, depth);
    if (!has_match || (!is_tree && is_resumed_first)) return draft_;
    add_chain(match.end + 1, match.length, TextDraft::Source::longest, n_nodes, depth);
    return draft_;
}

}  // namespace eaglecpp
