// SPDX-License-Identifier: MIT
// Checks for values that llama.cpp accepts while loading, but that later end the process, hang or write out of bounds
// when ggml computes with them on a worker thread, where no assertion can be caught.
#pragma once

#include <llama.h>

#include <string>
#include <vector>

#include "gguf/reader.h"

namespace eaglecpp {

// Headers of a model: of one file, or of all parts of a split model whose names follow llama.cpp's pattern.
class ModelFiles {
  public:
    // Error(not_found | gguf)
    explicit ModelFiles(const std::string & path);

    const std::vector<GgufReader> & parts() const { return parts_; }
    const GgufReader & header() const { return parts_.front(); }  // only the first part has settings
    const TensorInfo * find_tensor(const std::string & name) const;

  private:
    std::vector<GgufReader> parts_;
};

// Call before the model is loaded. Error(gguf)
void check_weights(const ModelFiles & model);

// Call before llama.cpp reads the adapter. Error(gguf | mismatch)
void check_lora(const GgufReader & lora, const ModelFiles & target);

// Checks only the types. Error(gguf)
void check_projector(const GgufReader & projector);

// Compares a file with the loaded model. Error(gguf)
void check_settings(const ModelFiles & files, const llama_model * model);

// Values per position in a cache of keys and values of plain attention, over all layers; a lower bound.
struct CellSize {
    double keys = 0, values = 0;
};
CellSize cell_size(const GgufReader & header, const llama_model * model);

}  // namespace eaglecpp
