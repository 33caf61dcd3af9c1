// SPDX-License-Identifier: MIT
// A conversation that was saved between two generations: one blob with version, sizes and checksum. Files hold the same
// bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "engine/feature_window.h"
#include "target/cells.h"

namespace eaglecpp {

class SavedSequence {
  public:
    // Start of the blob, followed by tokens, hidden states, the drafter's rows and the target's rows.
    struct Header {
        uint64_t checksum = 0;  // of all following bytes; 0 until seal()
        uint32_t magic = 0x4C474145, version = 1;
        int32_t n_tokens = 0, n_past = 0, inexact_from = 0, n_draft_rows = 0;
        int32_t n_aux = 0, n_embd = 0, first = 0, n_rows = 0;  // of the hidden states (FeatureWindow)
        uint64_t n_draft = 0, n_target = 0;                    // bytes
    };

    SavedSequence() : bytes(sizeof(Header)) {}
    // Reserves a blob of n bytes, to be filled from a file. The contents are not read before check().
    explicit SavedSequence(size_t n) : bytes(std::max(n, sizeof(Header))), is_untrusted_(true) {}

    // Sets the checksum. Call it before the blob goes to a file.
    void seal();
    // Raises Error(value) unless seal() made the blob, or if it contains image tokens: their ids are valid only in the
    // process that made them.
    void check();

    // empty before check()
    Header header() const { return is_untrusted_ ? Header{} : *(const Header *)bytes.data(); }
    Tokens tokens() const;
    const float * hidden_states() const { return (const float *)(bytes.data() + sizeof(Header)) + header().n_tokens; }
    ByteView draft() const { return {target().data - header().n_draft, header().n_draft}; }
    ByteView target() const { return {bytes.data() + bytes.size() - header().n_target, header().n_target}; }

    std::vector<uint8_t> bytes;
    std::vector<ImageRows> images;

  private:
    uint64_t checksum() const;

    bool is_untrusted_ = false;
};

}  // namespace eaglecpp
