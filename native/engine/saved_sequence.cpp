// SPDX-License-Identifier: MIT
#include "engine/saved_sequence.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"

namespace eaglecpp {

Tokens SavedSequence::tokens() const {
    const auto * first = (const Token *)(bytes.data() + sizeof(Header));
    return Tokens(first, first + header().n_tokens);
}

uint64_t SavedSequence::checksum() const {
    uint64_t hash = bytes.size();
    for (size_t i = sizeof(hash); i < bytes.size(); i += sizeof(hash)) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
        hash = mix(hash + mix_step + word);
    }
    return hash;
}

void SavedSequence::seal() {
    ((Header *)bytes.data())->checksum = checksum();
}

void SavedSequence::check() {
    const size_t n = bytes.size() - sizeof(Header);
    const Header h = *(const Header *)bytes.data();
    bool fits = true;
    for (int32_t size : {h.n_tokens, h.n_past, h.inexact_from, h.n_draft_rows, h.n_embd, h.first})
        fits = fits && size >= 0;
    fits = fits && h.magic == Header{}.magic && h.version == Header{}.version;
    fits = fits && h.n_aux >= 0 && h.n_aux <= 1024 && h.n_rows >= 0 && h.n_rows <= 1024;
    const uint64_t n_values = h.n_tokens + (uint64_t)h.n_embd * (h.n_aux * h.n_rows);
    fits = fits && h.n_draft <= n && h.n_target <= n && n_values * sizeof(float) + h.n_draft + h.n_target == n;
    if (!fits || h.checksum != checksum()) {
        fail(ErrorKind::value,
             "a saved conversation is damaged or was saved by another version: expected version %u with a correct "
             "checksum, found %zu other bytes; read the prompt again",
             Header{}.version, bytes.size());
    }
    const auto * tokens = (const Token *)(bytes.data() + sizeof(Header));
    if (std::any_of(tokens, tokens + h.n_tokens, [](Token t) { return t < 0; })) {
        fail(ErrorKind::value,
             "a saved conversation has tokens of images, which are valid only in the process that saved it");
    }
    is_untrusted_ = false;
}

}  // namespace eaglecpp
