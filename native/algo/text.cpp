// SPDX-License-Identifier: MIT
#include "algo/text.h"

namespace eaglecpp {

static constexpr int n_agreeing_max = 64;  // a longer match counts as a match of this length
static constexpr int n_places_max = 256;   // number of earlier positions that are compared to find the longest match

static uint64_t pair_of(Token first, Token second) {
    return (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
}

void TextIndex::clear() {
    all_.clear();
    text_.clear();
    last_.clear();
    before_.clear();
}

void TextIndex::assign(const Tokens & text) {
    const size_t n_same =
        std::mismatch(text_.begin(), text_.begin() + std::min(text_.size(), text.size()), text.begin()).first -
        text_.begin();
    const bool goes_on = n_same == text_.size();
    if (!goes_on) clear();
    for (size_t i = goes_on ? n_same : 0; i < text.size(); ++i) add(text[i]);
}

void TextIndex::add(Token token) {
    text_.push_back(token);
    if ((int)all_.size() >= n_max_) {
        // Drops the older half of the text.
        const Tokens text = text_, end(all_.end() - n_max_ / 2, all_.end());
        clear();
        text_ = text;
        for (Token one : end) index(one);
    }
    index(token);
}

void TextIndex::index(Token token) {
    all_.push_back(token);
    before_.push_back(-1);
    if (all_.size() < 2) return;
    const uint64_t both = pair_of(all_[all_.size() - 2], token);
    const int32_t here = (int32_t)all_.size() - 1;
    const auto [at, is_new] = last_.try_emplace(both, here);
    if (is_new) return;
    before_.back() = at->second;
    at->second = here;
}

// Returns the number of tokens up to and including index `end` that match the last tokens of the text.
int TextIndex::n_agreeing(int end, const Tokens & last) const {
    int n = 0;
    while (n < (int)last.size() && n <= end && all_[end - n] == last[last.size() - 1 - n]) ++n;
    return n;
}

// Copies the tokens after the match. At the end of the text, the copy continues with the tokens already copied.
TextDraft TextIndex::propose(int n, const Tokens & more) const {
    TextDraft out;
    Tokens last(all_.end() - std::min<long>((long)all_.size(), n_agreeing_max), all_.end());
    last.insert(last.end(), more.begin(), more.end());
    if (last.size() < 2) return out;
    const auto found = last_.find(pair_of(last[last.size() - 2], last.back()));
    int best = -1, n_left = n_places_max;
    int at = more.empty() ? before_.back() : found == last_.end() ? -1 : found->second;
    for (; at >= 0 && n_left-- > 0; at = before_[at]) {
        const int length = std::min(n_agreeing(at, last), n_agreeing_max);
        if (length > out.n_match) best = at, out.n_match = length;
    }
    for (int i = 0; best >= 0 && i < n; ++i) {
        const size_t place = best + 1 + i, behind = place - all_.size();
        if (place >= all_.size() && behind >= more.size() + out.tokens.size()) break;
        const Token token = place < all_.size()    ? all_[place]
                            : behind < more.size() ? more[behind]
                                                   : out.tokens[behind - more.size()];
        if (token < 0) break;
        out.tokens.push_back(token);
    }
    return out;
}

}  // namespace eaglecpp
