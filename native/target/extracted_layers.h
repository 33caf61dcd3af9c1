// SPDX-License-Identifier: MIT
// Reads the hidden states at the inputs of chosen blocks k (counted from 0) in every decode. There are three modes:
//   layer_inp  llama.cpp records the inputs of blocks, for the architectures listed in llama_bridge
//   cb_eval    the evaluation callback copies the tensors named "l_out-<k-1>", which costs a graph split per layer
//   states     reads no layers, but the states for the model's MTP heads ("nextn embeddings")
//
// Two values of k are special: k = n_layer is the last block's output before the final norm, and k = n_layer + 1 is the
// output after the final norm ("result_norm"). Both are always read by cb_eval, and only for output rows, because
// llama.cpp drops all other rows inside the last block.
#pragma once

#include <llama.h>

#include <string>
#include <vector>

#include "base/hidden_states.h"
#include "base/types.h"
#include "target/model.h"

namespace eaglecpp {

class ExtractedLayers : Pinned {  // the context holds a pointer to it
  public:
    enum class Mode { none, layer_inp, cb_eval, states };

    // reads_states: reads the states for heads, not layers. Error(unsupported) if this target cannot provide a layer,
    // or if this libllama cannot provide the states.
    ExtractedLayers(const TargetModel & model, std::vector<int32_t> layers, bool reads_states);

    Mode mode() const { return mode_; }
    const char * mode_name() const {
        constexpr const char * names[] = {"none", "layer_inp", "cb_eval", "states"};
        return names[(int)mode_];
    }
    bool needs_all_outputs() const { return needs_all_outputs_; }
    // Returns true if the last block computes all rows, including rows without output.
    bool widens_last_block() const { return needs_all_outputs_ || mode_ == Mode::states; }

    // Call configure() before the context is created and attach() afterwards.
    void configure(llama_context_params & params);
    void attach(llama_context * ctx);

    // Call this function before each decode of n_rows rows.
    void begin(int n_rows);

    // Returns the hidden states of the last decode in batch order. The result is valid until the next decode.
    // Error(unsupported) if the graph did not compute a requested tensor.
    HiddenStates read(llama_context * ctx);

  private:
    static bool on_eval(ggml_tensor * t, bool ask, void * self);
    bool copy(ggml_tensor * t, size_t layer);

    std::vector<int32_t> layers_;
    std::vector<std::string> names_;  // names of the tensors to copy, by layer
    Mode mode_ = Mode::none;
    bool needs_all_outputs_ = false;
    int n_embd_;
    int n_rows_ = 0;
    std::vector<std::vector<float>> rows_;  // for cb_eval: rows of each layer, one ubatch after the other
};

}  // namespace eaglecpp
