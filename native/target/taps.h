// SPDX-License-Identifier: MIT
// Reads the residual stream R_k entering 0-based block k, for chosen k, out of every decode. Two ways:
//   layer_inp  llama.cpp records block inputs itself; for architectures whose graph does (llama_bridge has the list)
//   states     in place of both, what the model's own heads for further tokens read (llama.cpp's "nextn embeddings")
//   cb_eval    the evaluation callback copies the tensors named "l_out-<k-1>"; costs a graph split per layer
// k = n_layer (the last block's output before the final norm) and k = n_layer + 1 (after it, "result_norm") are always
// read by cb_eval, and only for rows whose logits are asked for, since llama.cpp drops the other rows inside the last
// block.
#pragma once

#include <llama.h>

#include <string>
#include <vector>

#include "base/features.h"
#include "base/types.h"
#include "target/model.h"

namespace eaglecpp {

class Taps : Pinned {  // the context holds a pointer to it
  public:
    enum class Mode { none, layer_inp, cb_eval, states };

    // Error(unsupported) for layers this target cannot serve.
    // `reads_states`: in place of layers, the states for heads; Error(unsupported) where this libllama has none.
    Taps(const TargetModel & model, std::vector<int32_t> layers, bool reads_states);

    Mode mode() const { return mode_; }
    const char * mode_name() const {
        constexpr const char * names[] = {"none", "layer_inp", "cb_eval", "states"};
        return names[(int)mode_];
    }
    bool needs_all_outputs() const { return needs_all_outputs_; }
    // the last block computes rows without output, too
    bool widens_last_block() const { return needs_all_outputs_ || mode_ == Mode::states; }

    // before and after creating the context
    void configure(llama_context_params & params);
    void attach(llama_context * ctx);

    // Call before each decode of n_rows rows.
    void begin(int n_rows);

    // Features of the last decode in batch order, valid until the next one. Error(unsupported) when the graph did not
    // produce a wanted tensor.
    FeatureRows read(llama_context * ctx);

  private:
    static bool on_eval(ggml_tensor * t, bool ask, void * self);
    bool copy(ggml_tensor * t, size_t tap);

    std::vector<int32_t> layers_;
    std::vector<std::string> names_;  // of the tensor of each layer
    Mode mode_ = Mode::none;
    bool needs_all_outputs_ = false;
    int n_embd_;
    int n_rows_ = 0;
    std::vector<std::vector<float>> rows_;  // cb_eval: per layer, ubatch after ubatch
};

}  // namespace eaglecpp
