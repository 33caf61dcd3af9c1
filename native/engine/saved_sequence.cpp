// SPDX-License-Identifier: MIT
#include "engine/saved_sequence.h"

#include "base/error.h"
#include "base/hash.h"

namespace eaglecpp {

Tokens SavedSequence::tokens() const {
    return Tokens(first_token(), first_token() + header().n_tokens);
}

std::vector<ImageRows> SavedSequence::images() const {
    return std::vector<ImageRows>(image_rows(), image_rows() + header().n_images);
}

std::vector<int> SavedSequence::ends() const {
    const Header h = header();
    std::vector<int> out;
    for (int i = 0; i < h.n_ends; ++i) out.push_back((int)h.ends[i].n);
    if (!h.ends_anywhere) out.push_back(h.n_past);
    return out;
}

ByteView SavedSequence::end(int i) const {
    const Header h = header();
    ByteView out{target().data, 0};
    for (int at = h.n_ends; at-- > i;) out = {out.data - h.ends[at].n_bytes, h.ends[at].n_bytes};
    return out;
}

uint64_t SavedSequence::checksum() const {
    const size_t n_skipped = sizeof(Header::checksum);
    return hash_bytes(bytes.data() + n_skipped, bytes.size() - n_skipped, bytes.size());
}

void SavedSequence::seal() {
    ((Header *)bytes.data())->checksum = checksum();
}

void SavedSequence::check(const Tokens & known) {
    const size_t n = bytes.size() - sizeof(Header);
    const Header h = *(const Header *)bytes.data();
    bool fits = true;
    for (int32_t size : {h.n_tokens, h.n_past, h.inexact_from, h.n_draft_rows, h.n_embd, h.first, h.n_images})
        fits = fits && size >= 0;
    fits = fits && h.magic == Header{}.magic && h.version == Header{}.version;
    fits = fits && h.n_aux >= 0 && h.n_aux <= 1024 && h.n_rows >= 0 && h.n_rows <= 1024;
    fits = fits && h.n_ends >= 0 && h.n_ends <= n_ends_max;
    uint64_t n_needed = sizeof(Token) * (uint64_t)h.n_tokens + sizeof(ImageRows) * (uint64_t)h.n_images;
    n_needed += sizeof(float) * ((uint64_t)h.n_embd * (h.n_aux * h.n_rows));
    const auto add = [&](uint64_t n_bytes) {
        fits = fits && n_bytes <= n;
        n_needed += fits ? n_bytes : 0;
    };
    add(h.n_draft), add(h.n_target);
    for (int i = 0; fits && i < h.n_ends; ++i) {
        fits = h.ends[i].n > (i > 0 ? h.ends[i - 1].n : 0) && h.ends[i].n <= (uint64_t)h.n_past;
        add(h.ends[i].n_bytes);
    }
    fits = fits && n_needed == n;
    fail_if(!fits || h.checksum != checksum(), ErrorKind::value,
            "a saved conversation is damaged or was saved by another version; expected version %u with a correct "
            "checksum in its %zu bytes; send the prompt again",
            Header{}.version, bytes.size());
    const size_t n_known = std::min(known.size(), (size_t)h.n_tokens);
    std::copy_n(known.begin(), n_known, first_token());
    fail_if(std::any_of(first_token() + n_known, first_token() + h.n_tokens, [](Token t) { return t < 0; }),
            ErrorKind::value,
            "a saved conversation has tokens of images, which are valid only in the process that saved it");
    is_untrusted_ = false;
}

}  // namespace eaglecpp
