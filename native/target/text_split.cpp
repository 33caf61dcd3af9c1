// SPDX-License-Identifier: MIT
#include "target/text_split.h"

#include <algorithm>
#include <bitset>
#include <cctype>
#include <cstdio>
#include <unordered_set>

namespace eaglecpp {

static constexpr char space_mark[] = "\xe2\x96\x81";  // U+2581, a space in the tokens of SentencePiece

static std::string piece_of(const llama_vocab * vocab, Token token) {
    std::string out(32, '\0');
    int n = llama_token_to_piece(vocab, token, out.data(), (int32_t)out.size(), 0, true);
    if (n < 0) {
        out.resize(-n);
        n = llama_token_to_piece(vocab, token, out.data(), (int32_t)out.size(), 0, true);
    }
    out.resize(std::max(n, 0));
    return out;
}

static void replace_all(std::string & text, std::string_view from, std::string_view to) {
    std::string out;
    size_t at = 0;
    for (size_t next = text.find(from); next != std::string::npos; next = text.find(from, at)) {
        out.append(text, at, next - at).append(to);
        at = next + from.size();
    }
    if (at > 0) text = out.append(text, at);
}

static size_t n_bytes_of_char(unsigned char first) {
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// Strictly: what llama.cpp decodes and encodes again stays as it is.
static bool is_utf8(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        const unsigned char c = text[i];
        const size_t n = n_bytes_of_char(c);
        if ((c >= 0x80 && c < 0xc2) || c > 0xf4 || i + n > text.size()) return false;
        for (size_t k = 1; k < n; ++k) {
            if (((unsigned char)text[i + k] & 0xc0) != 0x80) return false;
        }
        const unsigned char next = n > 1 ? text[i + 1] : 0;
        if ((c == 0xe0 && next < 0xa0) || (c == 0xf0 && next < 0x90) || (c == 0xf4 && next > 0x8f)) return false;
        i += n;
    }
    return true;
}

// GPT-2's character for each byte
static std::array<std::string, 256> byte_alphabet() {
    std::array<std::string, 256> out;
    int n_shifted = 0;
    for (int b = 0; b < 256; ++b) {
        const bool is_kept = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        const int c = is_kept ? b : 256 + n_shifted++;
        out[b] = c < 0x80 ? std::string(1, (char)c) : std::string{(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
    }
    return out;
}

void TextSplit::look_for_specials() {
    const int n = llama_vocab_n_tokens(vocab_);
    constexpr int hidden = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
    for (Token t = 0; t < n; ++t) {
        const int attr = llama_vocab_get_attr(vocab_, t);
        if (!(attr & (hidden | LLAMA_TOKEN_ATTR_USER_DEFINED))) continue;
        specials_.push_back({piece_of(vocab_, t), t, (attr & hidden) != 0, (attr & LLAMA_TOKEN_ATTR_LSTRIP) != 0,
                             (attr & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
        if (specials_.back().text.empty()) knows_parts_ = false;
        swallows_ = swallows_ || specials_.back().strips_left || specials_.back().strips_right;
    }
    std::stable_sort(specials_.begin(), specials_.end(),
                     [](const Special & a, const Special & b) { return a.text.size() > b.text.size(); });

    const auto type = llama_vocab_type(vocab_);
    if (type != LLAMA_VOCAB_TYPE_SPM && type != LLAMA_VOCAB_TYPE_BPE) knows_parts_ = false;
    // llama.cpp sorts by length alone, with a sort that is not stable
    for (size_t first = 0, last = 0; first < specials_.size() && knows_parts_; first = last) {
        const size_t size = specials_[first].text.size();
        std::unordered_set<std::string_view> begins, texts;
        while (last < specials_.size() && specials_[last].text.size() == size) ++last;
        if (last - first < 2) continue;
        for (size_t i = first; i < last; ++i) {
            const std::string_view text = specials_[i].text;
            if (!texts.insert(text).second) knows_parts_ = false;
            for (size_t k = 1; k < size; ++k) begins.insert(text.substr(0, k));
        }
        for (size_t i = first; i < last && knows_parts_; ++i) {
            const std::string_view text = specials_[i].text;
            for (size_t k = 1; k < size && knows_parts_; ++k) {
                const std::string_view end = text.substr(size - k);
                if (!begins.count(end)) continue;
                for (size_t j = first; j < last; ++j) {
                    if (j != i && specials_[j].text.compare(0, k, end) == 0) knows_parts_ = false;
                }
            }
        }
    }
}

bool TextSplit::knows_parts() {
    std::call_once(looked_for_specials_, [this] { look_for_specials(); });
    return knows_parts_;
}

std::optional<std::vector<TextPart>> TextSplit::parts(std::string_view text, bool parse_special, size_t n_most) {
    std::call_once(looked_for_specials_, [this] { look_for_specials(); });
    std::vector<TextPart> parts, next;
    if (!text.empty()) parts.push_back({0, text.size(), -1});
    // Most special tokens do not occur: pairs of bytes tell that in one pass over the text for all of them.
    std::bitset<1 << 16> pairs;
    const auto pair = [](std::string_view s, size_t i) {
        return (size_t)(unsigned char)s[i] << 8 | (unsigned char)s[i + 1];
    };
    for (size_t i = 0; i + 1 < text.size(); ++i) pairs.set(pair(text, i));

    size_t n_found = 0;
    for (const Special & special : specials_) {
        if (special.is_hidden && !parse_special) continue;
        const std::string_view word = special.text;
        bool may_be = word.size() <= text.size();
        for (size_t i = 0; i + 1 < word.size() && may_be; ++i) may_be = pairs.test(pair(word, i));
        if (!may_be || text.find(word) == std::string_view::npos) continue;
        next.clear();
        for (const TextPart & part : parts) {
            if (part.token >= 0) {
                next.push_back(part);
                continue;
            }
            size_t begin = part.begin;
            while (begin < part.end) {
                const size_t at = text.substr(0, part.end).find(word, begin);
                if (at == std::string_view::npos) break;
                size_t left_end = at, right = at + word.size();
                while (special.strips_left && left_end > begin && std::isspace((unsigned char)text[left_end - 1]))
                    --left_end;
                if (left_end > begin) next.push_back({begin, left_end, -1});
                next.push_back({at, right, special.token});
                while (special.strips_right && right < part.end && std::isspace((unsigned char)text[right])) ++right;
                begin = right;
                if (++n_found > n_most) return std::nullopt;
            }
            if (begin < part.end) next.push_back({begin, part.end, -1});
        }
        std::swap(parts, next);
    }
    return parts;
}

std::string TextSplit::text_of(Token token) const {
    if (form_ == Form::bytes) return llama_vocab_get_text(vocab_, token);
    constexpr int shown =
        LLAMA_TOKEN_ATTR_NORMAL | LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN | LLAMA_TOKEN_ATTR_USER_DEFINED;
    const bool is_shown = (llama_vocab_get_attr(vocab_, token) & shown) != 0;
    std::string text = is_shown ? piece_of(vocab_, token) : llama_vocab_get_text(vocab_, token);
    replace_all(text, space_mark, " ");
    return text;
}

// How texts are written in tokens, and all tokens' texts in an order in which they are found fast.
void TextSplit::look_at_texts() {
    const int n = llama_vocab_n_tokens(vocab_);
    const auto type = llama_vocab_type(vocab_);
    if (type != LLAMA_VOCAB_TYPE_SPM && type != LLAMA_VOCAB_TYPE_BPE) return;
    std::array<Token, 4> spaces{};
    const int n_spaces = llama_tokenize(vocab_, " a", 1, spaces.data(), (int32_t)spaces.size(), false, false);
    const std::string space = n_spaces > 0 ? llama_vocab_get_text(vocab_, spaces[0]) : "";
    alphabet_ = byte_alphabet();
    form_ = space == alphabet_[' '] ? Form::bytes : space.compare(0, 3, space_mark) == 0 ? Form::spaces : Form::unknown;
    if (form_ == Form::unknown) return;

    std::vector<std::string> texts(n);
    for (Token t = 0; t < n; ++t) texts[t] = text_of(t);
    const std::unordered_set<std::string_view> known(texts.begin(), texts.end());
    for (int b = 0; b < 256; ++b) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", b);
        is_lost_[b] = !known.count(form_ == Form::bytes ? std::string_view(alphabet_[b]) : name);
        has_lost_ = has_lost_ || is_lost_[b];
    }
    // DNA is written in capitals, six bases a token; and whoever leaves out bytes of texts with spaces may leave out
    // any
    if (known.count("<dna>") || (form_ == Form::spaces && has_lost_)) form_ = Form::unknown;
    if (form_ == Form::unknown) return;

    std::sort(texts.begin(), texts.end());
    first_with_.assign((1 << 16) + 1, 0);
    for (const std::string & text : texts) {
        offsets_.push_back((uint32_t)texts_.size());
        texts_ += text;
        n_longest_ = std::max(n_longest_, text.size());
        if (!text.empty()) {
            const size_t second = text.size() > 1 ? (unsigned char)text[1] : 0;
            ++first_with_[((size_t)(unsigned char)text[0] << 8 | second) + 1];
        } else {
            ++first_with_[0];
        }
    }
    offsets_.push_back((uint32_t)texts_.size());
    for (size_t i = 1; i < first_with_.size(); ++i) first_with_[i] += first_with_[i - 1];
}

// The longest token's text that `text` begins with; 0 = none does.
size_t TextSplit::longest_at(std::string_view text) const {
    const auto byte = [](std::string_view s, size_t i) { return (int)(unsigned char)s[i]; };
    const auto holds = [&](uint32_t i, std::string_view whole) { return token_text(i) == whole; };
    size_t found = 0;
    const size_t alone = (size_t)byte(text, 0) << 8;
    for (uint32_t i = first_with_[alone]; i < first_with_[alone + 1] && found == 0; ++i) {
        found = holds(i, text.substr(0, 1)) ? 1 : 0;
    }
    if (text.size() < 2) return found;
    const size_t key = alone | (size_t)byte(text, 1);
    uint32_t low = first_with_[key], high = first_with_[key + 1];
    for (size_t n = 2; low < high; ++n) {
        if (token_text(low).size() < 2) {  // a single byte that sorts with those that have a 0 behind it
            ++low;
            --n;
            continue;
        }
        if (token_text(low).size() == n) {
            found = n;
            while (low < high && token_text(low).size() == n) ++low;
        }
        if (n == text.size() || low == high) break;
        // those that go on as the text does
        const int next = byte(text, n);
        const auto lower = [&](int value) {
            uint32_t a = low, b = high;
            while (a < b) {
                const uint32_t middle = a + (b - a) / 2;
                if (byte(token_text(middle), n) < value) {
                    a = middle + 1;
                } else {
                    b = middle;
                }
            }
            return a;
        };
        const uint32_t first = lower(next);
        high = lower(next + 1);
        low = first;
    }
    return found;
}

bool TextSplit::is_lost(std::string_view symbol) const {
    for (int b = 0; b < 256; ++b) {
        if (is_lost_[b] && symbol == alphabet_[b]) return true;
    }
    return false;
}

// Fewest tokens of one part, counted no further than n_most + 1. `reach` is as far as n tokens can come; which of the
// places before it the next one begins at is left open, so this is a lower bound.
size_t TextSplit::count(std::string_view part, size_t n_most) const {
    std::string text;  // as tokens are written, as far as it is needed
    size_t n_read = 0;
    const auto read_on = [&](size_t n_wanted) {
        for (; n_read < part.size() && text.size() < n_wanted; ++n_read) {
            const unsigned char b = part[n_read];
            if (form_ == Form::bytes) {
                text += alphabet_[b];
            } else if (part.compare(n_read, 3, space_mark) == 0) {
                text += ' ';
                n_read += 2;
            } else {
                text += (char)b;
            }
        }
    };
    // SentencePiece may put a space in front, which is then no token of its own
    const bool may_add = form_ == Form::spaces;
    if (may_add) text += ' ';

    size_t n = 0, reach = 0, farthest = 0;
    for (size_t at = 0;; ++at) {
        if (text.size() < at + n_longest_ + 4) read_on(at + n_longest_ + (1 << 12));
        if (at >= text.size()) break;
        if (((unsigned char)text[at] & 0xc0) == 0x80) continue;
        const std::string_view rest = std::string_view(text).substr(at);
        const size_t n_char = std::min(n_bytes_of_char(text[at]), rest.size());
        farthest = std::max(farthest, at + std::max(longest_at(rest.substr(0, n_longest_)), n_char));
        if (at < reach) continue;
        if (has_lost_ && is_lost(rest.substr(0, n_char))) {
            reach = at + n_char;
            continue;
        }
        if (n > n_most + may_add) break;
        ++n;
        reach = farthest;
    }
    return may_add && n > 0 ? std::max<size_t>(n - 1, 1) : n;
}

bool TextSplit::exceeds(std::string_view text, const std::vector<TextPart> & parts, size_t n_most) {
    // every token but one that is put in front has a byte at least
    if (text.size() <= n_most || !is_utf8(text) || (!knows_parts() && swallows_)) return false;
    std::call_once(looked_at_texts_, [this] { look_at_texts(); });
    if (form_ == Form::unknown) return false;
    size_t n = 0;
    for (const TextPart & part : parts) {
        n += part.token >= 0 ? 1 : count(text.substr(part.begin, part.end - part.begin), n_most - n);
        if (n > n_most) return true;
    }
    return false;
}

}  // namespace eaglecpp
