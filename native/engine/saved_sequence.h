// SPDX-License-Identifier: MIT
// A conversation that was saved between two generations, as one blob with version, sizes and checksum. The file of a
// saved conversation contains the same bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "engine/pending_states.h"
#include "target/cells.h"

namespace eaglecpp {

class SavedSequence {
  public:
    static constexpr int n_ends_max = 6;
    // A checkpoint after the first n tokens.
    struct End {
        uint64_t n = 0, n_bytes = 0;
    };
    // Start of the blob, followed by tokens, images, hidden states, the drafter's rows, checkpoints and the target's
    // rows.
    struct Header {
        uint64_t checksum = 0;  // checksum of all following bytes; 0 until seal()
        uint32_t magic = 0x4C474145, version = 2;
        int32_t n_tokens = 0, n_past = 0, inexact_from = 0, n_draft_rows = 0;
        int32_t n_aux = 0, n_embd = 0, first = 0, n_rows = 0;  // sizes for PendingStates
        int32_t n_replay = 0, n_images = 0, n_ends = 0, ends_anywhere = 0;
        uint64_t n_draft = 0, n_target = 0;  // number of bytes
        End ends[n_ends_max];
    };

    SavedSequence() : bytes(sizeof(Header)) {}
    // Reserves a blob of n bytes, which the caller fills from a file. The contents are untrusted and are not read
    // before check().
    explicit SavedSequence(size_t n) : bytes(std::max(n, sizeof(Header))), is_untrusted_(true) {}

    // Sets the checksum. Call this function before the blob is written to a file.
    void seal();
    // Raises Error(value) if the blob is damaged or was saved by another version, or if a token after `known` belongs
    // to an image. known: the first tokens of the conversation, with this process's ids of images.
    void check(const Tokens & known = {});

    // header(), tokens(), images() and ends() return empty results before check().
    Header header() const { return is_untrusted_ ? Header{} : *(const Header *)bytes.data(); }
    Tokens tokens() const;
    std::vector<ImageRows> images() const;
    // Returns the lengths to which the text can be cut; the last length is n_past. Empty = any length is possible.
    std::vector<int> ends() const;
    const float * hidden_states() const { return (const float *)(image_rows() + header().n_images); }
    ByteView draft() const { return {end(0).data - header().n_draft, header().n_draft}; }
    ByteView end(int i) const;
    ByteView target() const { return {bytes.data() + bytes.size() - header().n_target, header().n_target}; }

    std::vector<uint8_t> bytes;

  private:
    uint64_t checksum() const;
    Token * first_token() const { return (Token *)(bytes.data() + sizeof(Header)); }
    const ImageRows * image_rows() const { return (const ImageRows *)(first_token() + header().n_tokens); }

    bool is_untrusted_ = false;
};

}  // namespace eaglecpp
