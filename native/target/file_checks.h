// SPDX-License-Identifier: MIT
// Checks files for values that llama.cpp accepts while loading, but that make ggml fail on a worker thread. The process
// would then end, hang or write out of bounds, because assertions on worker threads cannot be caught.
#pragma once

#include <llama.h>

#include <string>
#include <vector>

#include "gguf/reader.h"

namespace eaglecpp {

// Headers of a model's files: a single file, or all parts of a split model if the file name follows llama.cpp's
// pattern.
class ModelFiles {
  public:
    // Opens the file and all other parts of a split model. Error(not_found | gguf)
    explicit ModelFiles(const std::string & path);

    const std::vector<GgufReader> & parts() const { return parts_; }
    const GgufReader & header() const { return parts_.front(); }  // only the first part has settings
    const TensorInfo * find_tensor(const std::string & name) const;

  private:
    std::vector<GgufReader> parts_;
};

// Checks the types and sizes of the weights. Call this function before the model is loaded. Error(gguf)
void check_weights(const ModelFiles & model);

// Checks a LoRA adapter. Call this function before llama.cpp reads the adapter. Error(gguf | mismatch)
void check_lora(const GgufReader & lora, const ModelFiles & target);

// Checks the tensor types of an image projector. Error(gguf)
void check_projector(const GgufReader & projector);

// Compares the settings of a file with the loaded model. Error(gguf)
void check_settings(const ModelFiles & files, const llama_model * model);

// Minimum number of cached values per position, for keys and values of plain attention over all layers.
struct CellSize {
    double keys = 0, values = 0;
};
CellSize cell_size(const GgufReader & header, const llama_model * model);

}  // namespace eaglecpp
