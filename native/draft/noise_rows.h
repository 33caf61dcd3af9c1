// SPDX-License-Identifier: MIT
// The noise of coupled sampling (algo/noise.h) on the drafter's device, so that a graph can draw what the target will
// draw: a row over the draft vocabulary for each of the next places of a text, times the temperature. In halves, and
// what a sampler cuts is only roughly left out: where that decides, the host, which draws again from what the graph
// picked, notices.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <array>
#include <vector>

#include "algo/coupled.h"
#include "draft/device.h"

namespace eaglecpp {

class NoiseRows {
  public:
    // places of a text that are there at the same time
    static constexpr int n_rows = 32;

    // `d2t`: as of the drafter, and outlives this. Without memory for it tensor() is null.
    NoiseRows(DraftDevice & device, int n_draft_vocab, const std::vector<Token> & d2t);

    ggml_tensor * tensor() const { return buffer_ ? rows_ : nullptr; }  // [n_draft_vocab, n_rows] f16

    // The row of the token at index `pos` of the text. Sends it if it is not there, which nobody waits for.
    int bring(const CoupledSampling & sampling, Pos pos);

  private:
    // what a row holds
    struct Tag {
        uint32_t seed;
        float temperature, most;
        Pos pos = -1;
    };

    void make_table(float temperature, float most);

    DraftDevice & device_;
    const std::vector<Token> & d2t_;
    ggml_context_ptr ctx_;
    ggml_tensor * rows_;
    ggml_backend_buffer_ptr buffer_;
    DraftDevice::HostMemory host_;
    std::array<Tag, n_rows> tags_;
    float table_temperature_ = 0.0f, table_most_ = 0.0f;
    std::vector<ggml_fp16_t> table_;  // by the first 16 bits
    std::vector<uint16_t> coarse_;    // kept to save allocations
};

}  // namespace eaglecpp
