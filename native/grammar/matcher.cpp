// SPDX-License-Identifier: MIT
#include "grammar/matcher.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace eaglecpp {

TokenPieces::TokenPieces(const std::vector<std::string> & pieces, std::vector<bool> is_end)
    : is_end_(std::move(is_end)) {
    for (Token token = 0; token < size(); ++token) {
        begin_.push_back((uint32_t)bytes_.size());
        if (is_end_[token]) {
            ends_.push_back(token);
            continue;
        }
        const std::string piece = pieces[token].substr(0, pieces[token].find('\0'));
        bytes_ += piece;
        n_longest_ = std::max(n_longest_, piece.size());
        if (!piece.empty()) sorted_.push_back(token);
    }
    begin_.push_back((uint32_t)bytes_.size());
    std::sort(sorted_.begin(), sorted_.end(), [&](Token a, Token b) { return piece(a) < piece(b); });
    std::string_view last;
    for (Token token : sorted_) {
        const std::string_view now = piece(token);
        n_common_.push_back(
            (uint32_t)(std::mismatch(now.begin(), now.begin() + (long)std::min(now.size(), last.size()), last.begin())
                           .first -
                       now.begin()));
        last = now;
    }
}

namespace {
using Type = Grammar::Type;
constexpr uint64_t behind_characters = uint64_t(1) << 32;
// Of a frame at the beginning of a rule that is called at this very place in the text. If the rule turns out empty,
// whoever called it has gone on already.
constexpr uint32_t is_new = uint32_t(1) << 31;
constexpr size_t n_masks_max = 32;

// One byte more of a character: whether it can be one. Complete when n_lacking is 0 afterwards.
bool add_byte(uint32_t & bits, uint32_t & n_lacking, unsigned char byte) {
    if (n_lacking > 0) {
        bits = bits << 6 | (byte & 0x3Fu);
        --n_lacking;
        return (byte & 0xC0) == 0x80;
    }
    n_lacking = byte < 0xC0 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    bits = n_lacking == 0 ? byte : byte & ((1u << (7 - n_lacking)) - 1);
    return byte < 0x80 || byte >= 0xC0;
}
}  // namespace

size_t GrammarMatcher::Hash::operator()(const Frame & f) const {
    return mix(mix((uint64_t)f.slot << 32 | f.count) + mix_step * (f.next + 1));
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenPieces> pieces)
    : grammar_(std::move(grammar)), pieces_(std::move(pieces)), sets_{{0, 0}}, calls_(grammar_->n_rules()) {
    todo_ = {{Grammar::start, 0, 0}};
    now_.set = close();
}

void GrammarMatcher::take_steps(size_t n) {
    n_steps_left_ -= (int64_t)n;
    if (n_steps_left_ >= 0) return;
    fail(ErrorKind::grammar,
         "the grammar is too ambiguous or too large here: one token may take %lld steps, and %lld more for each token "
         "before it, which were not enough",
         (long long)GrammarLimits::n_steps, (long long)GrammarLimits::n_steps_back);
}

uint64_t GrammarMatcher::order_of(const Frame & f) const {
    const Element & e = grammar_->at(f.slot);
    return e.type == Type::chr ? e.value : behind_characters;
}

// The number of the set of these frames.
uint32_t GrammarMatcher::keep(std::vector<Frame> & frames) {
    if (frames.empty()) return 0;
    take_steps(frames.size());
    std::sort(frames.begin(), frames.end(), [&](const Frame & a, const Frame & b) {
        const uint64_t x = order_of(a), y = order_of(b);
        return x != y ? x < y : std::tie(a.slot, a.count, a.next) < std::tie(b.slot, b.count, b.next);
    });
    frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
    uint64_t hash = frames.size();
    for (const Frame & f : frames) hash = mix(hash + Hash()(f));
    const auto [first, last] = set_of_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
        const Set & s = sets_[it->second];
        if (s.size == frames.size() && std::equal(frames.begin(), frames.end(), frames_.begin() + s.begin)) {
            return it->second;
        }
    }
    sets_.push_back({(uint32_t)frames_.size(), (uint32_t)frames.size()});
    frames_.insert(frames_.end(), frames.begin(), frames.end());
    set_of_.emplace(hash, (uint32_t)sets_.size() - 1);
    return (uint32_t)sets_.size() - 1;
}

// The set of all frames that wait for a character, a token or the end when the text stands at those of todo_. Rules
// are called in their order, so that each has all its callers at this place when it begins.
uint32_t GrammarMatcher::close() {
    for (uint32_t rule : called_) calls_[rule].clear();  // an error may have left them
    called_.clear();
    seen_ = {};
    items_.clear();
    while (true) {
        while (!todo_.empty()) {
            const Frame f = todo_.back();
            todo_.pop_back();
            if (!seen_.insert(f).second) continue;
            take_steps(1);
            const Element & e = grammar_->at(f.slot);
            const uint32_t newness = f.count & is_new, count = f.count & ~is_new;
            if (e.type == Type::end) {
                if (newness) continue;
                const Set & s = sets_[f.next];
                take_steps(s.size);
                todo_.insert(todo_.end(), frames_.begin() + s.begin, frames_.begin() + s.begin + s.size);
            } else if (e.type == Type::rule || e.type == Type::repeat) {
                call(e, {f.slot, count, f.next});
                const bool may_be_empty = grammar_->rule(e.value).may_be_empty;
                if (may_be_empty || (e.type == Type::repeat && count >= e.min)) {
                    todo_.push_back({f.slot + 1, newness, f.next});
                }
            } else {
                items_.push_back({f.slot, 0, f.next});
            }
        }
        if (called_.empty()) break;
        const uint32_t rule = called_.front();
        const uint32_t next = keep(calls_[rule]);
        calls_[rule].clear();
        std::pop_heap(called_.begin(), called_.end(), std::greater<>());  // after what may fail
        called_.pop_back();
        const Grammar::Rule & r = grammar_->rule(rule);
        for (uint32_t slot = r.begin; slot < r.end; ++slot) {
            const bool is_first = slot == r.begin || grammar_->at(slot - 1).type == Type::end;
            if (is_first) todo_.push_back({slot, is_new, next});
        }
        take_steps(r.end - r.begin);
    }
    return keep(items_);
}

// Calls a rule from a frame at `rule` or `repeat`.
void GrammarMatcher::call(const Element & e, const Frame & f) {
    Frame back = {f.slot + 1, 0, f.next};
    if (e.type == Type::repeat && f.count + 1 != e.max) {
        back = {f.slot, e.max == Grammar::unlimited ? std::min(f.count + 1, e.min) : f.count + 1, f.next};
    }
    std::vector<Frame> & calls = calls_[e.value];
    if (calls.empty()) {
        called_.push_back(e.value);
        std::push_heap(called_.begin(), called_.end(), std::greater<>());
    }
    if (grammar_->at(back.slot).type != Type::end) {
        calls.push_back(back);
        return;
    }
    const Set & s = sets_[f.next];
    take_steps(s.size);
    calls.insert(calls.end(), frames_.begin() + s.begin, frames_.begin() + s.begin + s.size);
}

// The set behind a character.
uint32_t GrammarMatcher::move(uint32_t set, uint32_t c) {
    const uint64_t key = (uint64_t)set << 32 | grammar_->class_of(c);
    if (const auto known = moves_.find(key); known != moves_.end()) return known->second;
    const auto begin = frames_.begin() + sets_[set].begin, end = begin + sets_[set].size;
    const auto is_before = [&](const Frame & f, uint64_t order) { return order_of(f) < order; };
    todo_.clear();
    auto it = std::lower_bound(begin, end, (uint64_t)c, is_before);
    for (; it != end && order_of(*it) == c; ++it) todo_.push_back({it->slot + 1, 0, it->next});
    it = std::lower_bound(it, end, behind_characters, is_before);
    take_steps(1 + (size_t)(end - it));
    for (; it != end; ++it) {
        const Element & e = grammar_->at(it->slot);
        if ((e.type == Type::set || e.type == Type::not_set) && grammar_->fits_any(e, c, c)) {
            todo_.push_back({it->slot + 1, 0, it->next});
        }
    }
    const uint32_t found = close();
    moves_.emplace(key, found);
    return found;
}

GrammarMatcher::State GrammarMatcher::step(State state, unsigned char byte) {
    if (!add_byte(state.bits, state.n_lacking, byte)) return {};
    if (state.n_lacking == 0) state.set = move(state.set, state.bits);
    return state;
}

// Whether a token may end here: if a character is not over yet, some form of it must fit.
bool GrammarMatcher::may_stop(const State & state) {
    if (state.set == 0 || state.n_lacking == 0) return state.set != 0;
    if (state.n_lacking == 1 && state.bits < 2) return false;  // longer than it need be
    const uint32_t n_bits = 6 * state.n_lacking;
    uint32_t low = state.bits << n_bits;
    const uint32_t high = low | ((1u << n_bits) - 1);
    if (low == 0 && state.n_lacking > 1) low = state.n_lacking == 2 ? 1u << 11 : 1u << 16;
    const auto begin = frames_.begin() + sets_[state.set].begin, end = begin + sets_[state.set].size;
    const auto is_before = [&](const Frame & f, uint64_t order) { return order_of(f) < order; };
    auto it = std::lower_bound(begin, end, (uint64_t)low, is_before);
    if (it != end && order_of(*it) <= high) return true;
    it = std::lower_bound(it, end, behind_characters, is_before);
    take_steps((size_t)(end - it));
    return std::any_of(it, end, [&](const Frame & f) {
        const Element & e = grammar_->at(f.slot);
        return (e.type == Type::set || e.type == Type::not_set) && grammar_->fits_any(e, low, high);
    });
}

// Whether the text may end here, which is not within a character.
bool GrammarMatcher::ends(const State & state) const {
    const auto begin = frames_.begin() + sets_[state.set].begin, end = begin + sets_[state.set].size;
    return state.n_lacking == 0 &&
           std::any_of(begin, end, [&](const Frame & f) { return grammar_->at(f.slot).type == Type::accept; });
}

// The state behind a token; of the empty set where it is not allowed.
GrammarMatcher::State GrammarMatcher::after(const State & from, Token token) {
    if (pieces_->is_end(token)) return ends(from) ? from : State();
    const std::string_view piece = pieces_->piece(token);
    State out = piece.empty() ? State() : from;
    for (size_t i = 0; i < piece.size() && out.set != 0; ++i) out = step(out, (unsigned char)piece[i]);
    return may_stop(out) ? out : State();
}

// Tokens in the order of their texts; what one has in common with the one before is not read again, and where that did
// not fit, neither does this one.
const std::vector<bool> & GrammarMatcher::allowed() {
    if (const auto it = allowed_in_.find(now_.set); it != allowed_in_.end() && now_.n_lacking == 0) return it->second;
    std::vector<bool> out(pieces_->size(), false);
    for (Token token : pieces_->ends()) out[token] = ends(now_);
    std::vector<State> states(pieces_->n_longest() + 1);
    states[0] = now_;
    size_t n_fine = 0;  // bytes of the last piece that was read
    for (size_t i = 0; i < pieces_->sorted().size(); ++i) {
        if (pieces_->n_common()[i] > n_fine) continue;
        const Token token = pieces_->sorted()[i];
        const std::string_view piece = pieces_->piece(token);
        n_fine = pieces_->n_common()[i];
        while (n_fine < piece.size()) {
            states[n_fine + 1] = step(states[n_fine], (unsigned char)piece[n_fine]);
            if (states[n_fine + 1].set == 0) break;
            ++n_fine;
        }
        if (n_fine == piece.size()) out[token] = may_stop(states[n_fine]);
    }
    if (now_.n_lacking > 0) return allowed_ = std::move(out);
    if (allowed_in_.size() >= n_masks_max) allowed_in_.clear();
    return allowed_in_[now_.set] = std::move(out);
}

void GrammarMatcher::accept(Token token) {
    const State next = after(now_, token);
    if (next.set == 0) fail(ErrorKind::grammar, "token %d does not fit the grammar at this point", token);
    now_ = next;
    n_steps_left_ = std::min(GrammarLimits::n_steps, n_steps_left_ + GrammarLimits::n_steps_back);
    n_draft_steps_left_ = GrammarLimits::n_steps_back;
    if (frames_.size() + sets_.size() + moves_.size() > (size_t)GrammarLimits::n_frames) collect_garbage();
}

std::vector<bool> GrammarMatcher::allows_behind(const Tokens & path, const Tokens & tokens) {
    std::vector<bool> out(tokens.size(), false);
    std::swap(n_steps_left_, n_draft_steps_left_);
    try {
        State state = now_;
        for (size_t i = 0; i < path.size() && state.set != 0; ++i) state = after(state, path[i]);
        for (size_t i = 0; i < tokens.size(); ++i) out[i] = after(state, tokens[i]).set != 0;
    } catch (const Error &) {
        n_steps_left_ = 0;
        out.assign(tokens.size(), false);
    }
    std::swap(n_steps_left_, n_draft_steps_left_);
    return out;
}

// Keeps what the text's state needs.
void GrammarMatcher::collect_garbage() {
    std::vector<uint32_t> number(sets_.size(), 0);  // 1: needed; then the new one
    number[now_.set] = 1;
    for (uint32_t set = now_.set; set > 0; --set) {
        for (uint32_t i = 0; number[set] && i < sets_[set].size; ++i) number[frames_[sets_[set].begin + i].next] = 1;
    }
    number[0] = 0;
    const std::vector<Frame> frames = std::move(frames_);
    const std::vector<Set> sets = std::move(sets_);
    const int64_t n_left = std::exchange(n_steps_left_, INT64_MAX);
    frames_.clear();
    sets_ = {{0, 0}};
    set_of_.clear();
    for (uint32_t set = 1; set < sets.size(); ++set) {
        if (!number[set]) continue;
        const auto begin = frames.begin() + sets[set].begin;
        std::vector<Frame> kept(begin, begin + sets[set].size);
        for (Frame & f : kept) f.next = number[f.next];
        number[set] = keep(kept);
    }
    n_steps_left_ = n_left;
    now_.set = number[now_.set];
    moves_ = {};
    allowed_in_.clear();
    if (frames_.size() + sets_.size() > (size_t)GrammarLimits::n_frames / 2) {
        fail(ErrorKind::grammar, "the grammar remembers too much of this text: at most %lld places to go on at",
             (long long)GrammarLimits::n_frames / 2);
    }
}

}  // namespace eaglecpp
