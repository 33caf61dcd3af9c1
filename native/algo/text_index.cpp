// SPDX-License-Identifier: MIT
#include "algo/text_index.h"

#include <algorithm>

namespace eaglecpp {

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
    int parent = -1;
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
        if (node < 0) {
            if (draft_.size() == n_nodes) return;
            draft_.nodes.push_back({token, parent, n_match + d, source});
            node = draft_.size() - 1;
        }
        parent = node;
    }
}

const TextDraft & TextIndex::propose(int n_nodes, int depth, bool is_tree) {
    draft_.nodes.clear();
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
