// SPDX-License-Identifier: MIT
#include "algo/suffix_automaton.h"

namespace eaglecpp {

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

}  // namespace eaglecpp
